"""Finds what a job has left: its output files, and the folders of its incidents."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from slurm_robust.cli.diagnosis.incident_files import json_objects
from slurm_robust.cli.diagnosis.saved_incidents import SavedIncident, incidents_in
from slurm_robust.cli.teaching import slurm_words
from slurm_robust.core.model import JobRef
from slurm_robust.diagnose.lines import OURS, STORY, unlabelled
from slurm_robust.marks import claim
from slurm_robust.marks.claim import ClaimError
from slurm_robust.slurm.client import Job, SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.output_files import output_patterns
from slurm_robust.slurm.parse import private_data
from slurm_robust.supervise.incident_folder import STORY_FILE
from slurm_robust.supervise.incident_folder import names as folder_names

_MAX_FILES = 64
_TAIL_BYTES = 64 << 10
_DAY_S = 86400


@dataclass(frozen=True)
class JobTraces:
    """The traces that a job has left.

    Attributes:
        files: Its output files that exist, stdout first.
        incidents: The incidents that its supervisors saved, the newest first.
        notes: A sentence for each thing that was looked for in vain.
        silent_since_s: When a job that still runs has last shown a sign of life; None if it does not run, or this is
            not known.
    """

    job: str
    files: tuple[Path, ...] = ()
    incidents: tuple[SavedIncident, ...] = ()
    notes: tuple[str, ...] = ()
    silent_since_s: float | None = None


def traces_of(
    ref: JobRef, connect: Callable[[], SlurmClient], journal: Sequence[dict[str, Any]], here: Path
) -> JobTraces:
    """Look for a job's files: where Slurm, its accounting and the daemon's journal say, then here.

    `journal` has incidents as `srobust incidents --json` shows them; `here` is the current folder.
    """
    notes: list[str] = []
    job = _ask(ref, connect, notes)
    patterns = output_patterns(job) if job is not None else ()
    files = _existing(patterns, notes)
    reports = [Path(i["report"]) for i in journal if _is_of(i, ref) and i.get("report")]
    places = [Path(glob_text(pattern)).parent for pattern in patterns]
    places += [Path(job.work_dir)] if job is not None and job.work_dir.startswith("/") else []
    places = _unique([*places, *(report.parent for report in reports), here])
    names = _unique([ref.address, *([str(job.ref.job_id)] if job is not None else [])])
    files = files or _existing([glob.escape(str(p / f"slurm-{name}.out")) for p in places for name in names], [])
    wanted = [*(p / f"slurm-robust-{name}" for p in places for name in names), *reports]
    # Others may have had the name before the job; what a stranger has put there is not the job's.
    folders = [one for path in _unique(wanted) for one in folder_names(path) if _is_by(one, job)]
    files = files or [path for folder in folders for path in _told(folder)][:_MAX_FILES]
    found = {one.folder: one for folder in folders for one in incidents_in(folder)}
    outcomes = {i.get("id"): str(i.get("reason") or "") for i in journal}
    incidents = [_with_outcome(one, outcomes.get(one.id, "")) for one in found.values()]
    notes += _claimed(job, incidents)
    newest_first = tuple(sorted(incidents, key=lambda one: -one.at_s))
    return JobTraces(ref.address, tuple(files), newest_first, tuple(notes), _silent_since_s(job, files))


def _ask(ref: JobRef, connect: Callable[[], SlurmClient], notes: list[str]) -> Job | None:
    """Return the job by slurmctld, else by the accounting."""
    for past in (False, True):
        try:
            client = connect()
            job = client.past_job(ref) if past else client.job(ref)
        except SlurmError as error:
            words = slurm_words(error).splitlines()[0]
            if words not in notes:
                notes.append(words)
            continue
        if job is not None:
            return job
    if not notes:
        notes.append(f"neither slurmctld nor the site's accounting knows job {ref.address}")
    notes += _perhaps_anothers(ref, connect)
    return None


def _perhaps_anothers(ref: JobRef, connect: Callable[[], SlurmClient]) -> list[str]:
    """Return a note that Slurm may hide the job from this caller: it may show jobs to their owners only."""
    with contextlib.suppress(SlurmError):
        if os.geteuid() and "jobs" in private_data(connect().settings()):
            hides = "this Slurm shows jobs to their owners alone (PrivateData=jobs)"
            who = f"its owner types srobust diagnose {ref.address}, or root with sudo"
            return [f"or it is another user's: {hides}, so {who}"]
    return []


def _existing(patterns: Sequence[str], notes: list[str]) -> list[Path]:
    """Return the regular files of these patterns: a job may name a pipe or a device, which could be read for ever."""
    found: list[Path] = []
    for pattern in patterns:
        there = map(Path, sorted(glob.glob(pattern)))  # noqa: PTH207 (the pattern is an absolute path)
        here = [path for path in there if path.is_file() and path not in found]
        if not here and pattern not in map(str, found):
            notes.append(f"{glob_text(pattern)}: the job's output by Slurm, not there, or no file that you may read")
        found += here
    return found[:_MAX_FILES]


def _told(folder: Path) -> list[Path]:
    """Return the output files that the story in a job's folder names last, as far as they are of the folder's owner."""
    told = [event["output"] for event in json_objects(folder / STORY_FILE, []) if isinstance(event.get("output"), list)]
    found = []
    for path in (Path(str(name)) for name in (told[-1] if told else ())):
        with contextlib.suppress(OSError, ValueError):
            if path.is_absolute() and path.is_file() and path.stat().st_uid == folder.stat().st_uid:
                found.append(path)
    return found


def glob_text(pattern: str) -> str:
    """Return a pattern for `glob` as people read it."""
    return pattern.replace("[[]", "[").replace("[*]", "*").replace("[?]", "?")


def _is_by(folder: Path, job: Job | None) -> bool:
    """Return True if the folder belongs to the job's user, root or the caller, or if the job's user is unknown."""
    uid = job.uid if job is not None else -1
    with contextlib.suppress(KeyError):
        uid = pwd.getpwnam(job.user).pw_uid if job is not None and uid < 0 else uid
    with contextlib.suppress(OSError):
        return uid < 0 or folder.stat(follow_symlinks=False).st_uid in (uid, 0, os.geteuid())
    return False


def _is_of(incident: dict[str, Any], ref: JobRef) -> bool:
    return incident.get("job") == ref.address or (ref.array_task_id is None and incident.get("job_id") == ref.job_id)


def _with_outcome(saved: SavedIncident, outcome: str) -> SavedIncident:
    """Return the incident with the outcome that the journal has, if its supervisor ended before it could write one."""
    if saved.incident is None or saved.incident.outcome or not outcome:
        return saved
    return replace(saved, incident=replace(saved.incident, outcome=outcome))


def _silent_since_s(job: Job | None, files: Sequence[Path]) -> float | None:
    """Return when a running job has last written into its output, or made a step."""
    if job is None or job.state != "RUNNING":
        return None
    signs = [0.0]
    for path in files:
        with contextlib.suppress(OSError):
            signs.append(_last_line_s(path))
    with contextlib.suppress(ClaimError):
        told = claim.parse(job.comment)
        signs.append(told.progress.get("last", 0.0) if told is not None else 0.0)
    return max(signs) or None


def _last_line_s(path: Path) -> float:
    """Return when others than we may have written into a file last: our lines at its end tell how old they are."""
    with path.open("rb") as file:
        written = os.fstat(file.fileno())
        file.seek(max(0, written.st_size - _TAIL_BYTES))
        lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    ours_s: list[int] = []
    """Times of day of our lines behind the others', the newest first."""
    for line in filter(str.strip, reversed(lines)):
        if (story := STORY.search(line)) is not None:
            hours, minutes, seconds = map(int, story.groups())
            ours_s.append(hours * 3600 + minutes * 60 + seconds)
        if unlabelled(OURS.split(line, maxsplit=1)[0]).strip():
            break
    gaps = ((newer - older) % _DAY_S for newer, older in pairwise(ours_s))
    # Two processes of ours write, so that a line may be a second older than the one before it.
    return written.st_mtime - sum(gap for gap in gaps if gap < _DAY_S // 2)


def _claimed(job: Job | None, saved: Iterable[SavedIncident]) -> list[str]:
    """Return a note that the job reports an incident whose folder is not in its place."""
    try:
        told = claim.parse(job.comment) if job is not None else None
    except ClaimError:
        return []
    if told is None or not told.incident or told.incident in {one.id for one in saved}:
        return []
    return [f"the job reports incident {told.incident} ({told.why or 'no reason'}), but its folder is not here"]


def _unique(some: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(some))
