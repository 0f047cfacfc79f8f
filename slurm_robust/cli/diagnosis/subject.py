"""Finds out what the words of `srobust diagnose` name: files, one job, or one incident."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from slurm_robust.cli.diagnosis.job_traces import JobTraces, traces_of
from slurm_robust.cli.diagnosis.saved_incidents import SavedIncident, incidents_in, read_incident
from slurm_robust.core.model import JobRef
from slurm_robust.slurm.client import SlurmClient

_INCIDENT = re.compile(r"(?P<job>\d{1,10}(?:_\d{1,10})?(?:_\d{1,4})?)-r\d{1,6}-\d{9,11}")
"""`1234-r0-1795228470`: the job, how often it had been requeued, when the incident was opened."""
_KEY = re.compile(r"[\w.-]{1,128}\.r\d+\.\d+\.(?P<id>[\w-]+?)(?:\.[a-z_]+)?")
"""The journal's own name of an incident."""


class NothingLeftError(Exception):
    """The named job or incident has left neither output nor incidents; the message says what to type next."""


@dataclass(frozen=True)
class Subject:
    """The files, job or incident that was named.

    Attributes:
        files: Output files of the job, or the files that were typed.
        incident: The incident that was named; None if a job or files were.
        job: The job's address; empty if files were named.
        incidents: All saved incidents of the job, the newest first.
        notes: A sentence for each thing that was looked for in vain.
        silent_since_s: The field of this name in `JobTraces`.
    """

    files: tuple[Path, ...] = ()
    incident: SavedIncident | None = None
    job: str = ""
    incidents: tuple[SavedIncident, ...] = ()
    notes: tuple[str, ...] = ()
    silent_since_s: float | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of its incidents."""
        saved = (self.incident, *self.incidents) if self.incident is not None else self.incidents
        known = (one.circumstances.rank_nodes.values() for one in saved if one.circumstances is not None)
        return tuple(sorted({node for nodes in known for node in nodes if node}))


def subject_of(words: Sequence[str], client: Callable[[], SlurmClient], journal: Sequence[dict[str, Any]]) -> Subject:
    """Find what these words name. A file of a word's name goes first, then a folder, a job, an incident.

    `client` connects to Slurm, and is only called for a job or an incident; `journal` has incidents as `srobust
    incidents --json` shows them.

    Raises:
        NothingLeftError: the job or incident has left nothing that can be read.
    """
    folders = {word: _is_folder(word) for word in words}
    if not any(is_folder is not False for is_folder in folders.values()):
        return Subject(tuple(Path(word) for word in words))
    if len(words) > 1:
        wrong = next(word for word in words if folders[word] is not False)
        what = "is a folder" if folders[wrong] else "no such file"
        raise click.UsageError(f"{wrong}: {what}. Type files of one job, or one JOBID, or one INCIDENT alone")
    word = words[0]
    if folders[word]:
        return _of_folder(Path(word))
    ref = _job_ref(word)
    if ref is not None:
        return _of_job(traces_of(ref, client, journal, Path.cwd()))
    found = _KEY.fullmatch(word)
    name = found["id"] if found else word
    match = _INCIDENT.fullmatch(name)
    if match is None and not any(name == i.get("id") for i in journal):
        raise click.UsageError(
            f"{word}: no file of that name, no job id (123, 123_4, 123+0) and no incident's id (1234-r0-1795228470). "
            "See: ls *.out, squeue --me, srobust incidents"
        )
    return _of_incident(name, match["job"] if match else "", client, journal)


def _is_folder(word: str) -> bool | None:
    """Return whether there is a folder of this name, and not a file; None if there is nothing."""
    path = Path(word)
    try:
        return path.is_dir() if path.exists() else None
    except OSError as error:
        raise click.UsageError(f"{word}: cannot be read: {error.strerror}") from None


def _job_ref(word: str) -> JobRef | None:
    try:
        return JobRef.parse(word)
    except ValueError:
        return None


def _of_folder(path: Path) -> Subject:
    """Return the subject for an incident's folder, or a job's: its newest incident counts."""
    saved = read_incident(path)
    if saved is not None:
        return _with_output(saved, tuple(incidents_in(path.resolve().parent, whole=False)))
    inside = incidents_in(path)
    if not inside:
        raise click.UsageError(f"{path}: a folder without an incident in it. Type its files: srobust diagnose {path}/*")
    left_out = f"{path} has {len(inside)} incidents; this is the newest"
    return _with_output(inside[0], tuple(inside), (left_out,) if len(inside) > 1 else ())


def _with_output(saved: SavedIncident, all_of_job: tuple[SavedIncident, ...], notes: tuple[str, ...] = ()) -> Subject:
    """Return the incident with the output file beside the job's folder, if the file has sbatch's usual name."""
    job = saved.incident.job if saved.incident is not None else ""
    place = saved.folder.resolve().parent.parent
    files = tuple(p for p in (place / f"slurm-{job}.out",) if job and p.is_file())
    return Subject(files, saved, job, all_of_job, notes)


def _of_job(traces: JobTraces) -> Subject:
    if not traces.files and not traces.incidents:
        raise NothingLeftError(
            f"job {traces.job}: neither its output nor a folder slurm-robust-{traces.job} was found "
            f"({'; '.join(traces.notes)}).\nWhere its output is, type the file itself: srobust diagnose FILE. "
            f"What the daemon knows: srobust incidents {traces.job}"
        )
    return Subject(traces.files, None, traces.job, traces.incidents, traces.notes, traces.silent_since_s)


def _of_incident(name: str, job: str, client: Callable[[], SlurmClient], journal: Sequence[dict[str, Any]]) -> Subject:
    """Find an incident by its job: a name has the job in it, and the journal knows each incident's job."""
    jobs = [str(i["job"]) for i in journal if i.get("id") == name]
    refs = [ref for ref in map(_job_ref, dict.fromkeys([*jobs, job, job.replace("_", "+")])) if ref is not None]
    traces = JobTraces(job)
    for ref in refs:
        traces = traces_of(ref, client, journal, Path.cwd())
        saved = next((one for one in traces.incidents if name in (one.id, one.folder.name)), None)
        if saved is not None:
            return Subject(traces.files, saved, traces.job, traces.incidents, traces.notes, traces.silent_since_s)
    others = ", ".join(one.id for one in traces.incidents[:5])
    raise NothingLeftError(
        f"incident {name}: its folder was not found ({'; '.join(traces.notes) or 'the job has others: ' + others}).\n"
        f"Where it is, type the folder itself: srobust diagnose slurm-robust-{job or 'JOBID'}/{name}. "
        f"What the daemon knows: srobust incidents {name}"
    )
