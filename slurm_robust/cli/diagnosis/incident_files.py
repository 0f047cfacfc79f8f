"""Reads everything in an incident's folder that its page shows.

The job may write there: sizes are bounded, links are not followed out of the folder, and what cannot be read is a
sentence on the page.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from slurm_robust.cli.diagnosis.saved_incidents import SavedIncident, incidents_in, read_incident
from slurm_robust.core.model import Incident
from slurm_robust.localize.evidence_folder import read_folder
from slurm_robust.localize.stacks.archive import ArchiveError
from slurm_robust.report.pages.incident_assemble import IncidentSources
from slurm_robust.report.pages.incident_view import LinkedFile
from slurm_robust.wire import plain_file

_MAX_BYTES = 32 << 20
_MAX_FILES, _MAX_TESTS = 300, 20
_RESTART = re.compile(r"-r(\d{1,6})-\d{9,11}\Z")
_MAX_SEEN = 20_000
"""Files of which the first ones by name are shown; a folder can have millions."""


def newest_incident(folder: Path) -> SavedIncident | None:
    """Return the incident in a folder, or the newest one in a job's folder; None if there is none."""
    own = read_incident(folder)
    return own if own is not None else next(iter(incidents_in(folder)), None)


def incidents_of_folder(folder: Path) -> list[dict[str, Any]]:
    """Return the incident of a folder, or all of a job's folder, newest first, as `incidents --json` shows them.

    Fields that only the daemon knows (user, actions) are empty.
    """
    own = read_incident(folder, whole=False)
    saved = [own] if own is not None else incidents_in(folder, whole=False)
    return [_as_row(one.folder, one.incident) for one in saved if one.incident is not None]


def _as_row(folder: Path, incident: Incident) -> dict[str, Any]:
    verdict, plan, restart = incident.verdict, incident.plan, _RESTART.search(incident.id)
    return {
        "id": incident.id,
        "key": "",
        "job": incident.job,
        "user": "",
        "attempt": {"restart_count": int(restart[1]) if restart else 0},
        "kind": "",
        "mode": "",
        "state": "closed" if incident.outcome else "open",
        "outcome": "",
        "reason": incident.outcome,
        "opened_at_s": incident.opened_at_s,
        "closed_at_s": None,
        "verdict": {}
        if verdict is None
        else {
            "conclusion": verdict.conclusion.value,
            "why": verdict.reason,
            "suspects": [suspect.node for suspect in verdict.suspects],
        },
        "plan": None
        if plan is None
        else {"road": plan.road.value, "reason": plan.reason, "evict": list(plan.evict), "standby": []},
        "actions": [],
        "times": dict(incident.times),
        "report": str(folder.parent),
    }


def read_sources(folder: Path, journal: Mapping[str, Any], page: Path) -> IncidentSources:
    """Read the folder's content and the journal's entry; `page` is the file that links are written for."""
    known = IncidentSources(journal=journal, folder=str(folder))
    try:
        there = folder.is_dir()
    except OSError:
        there = False
    if not there:
        return replace(known, problems=(f"{folder} cannot be read from here: only the daemon's journal is shown.",))
    saved = read_incident(folder, whole=False)
    problems = list(saved.problems) if saved is not None else [f"{folder}: no incident.json in it."]
    evidence = None
    try:
        read = read_folder(folder)
        evidence = read.evidence
        problems += read.problems
    except ArchiveError as error:
        problems.append(f"No stacks are shown: {error}")
    tests = [test for path in sorted(folder.glob("tests-*.json"))[:_MAX_TESTS] for test in json_objects(path, problems)]
    return replace(
        known,
        incident=saved.incident if saved is not None else None,
        evidence=evidence,
        story=tuple(json_objects(folder.parent / "story.jsonl", problems)),
        tests=tuple(tests),
        files=tuple(_files(folder, page)),
        problems=tuple(problems),
    )


def json_objects(path: Path, problems: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a file: the whole file is one, or each line."""
    try:
        text = plain_file.read(path, _MAX_BYTES).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return
    bad = 0
    for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError):
            bad += bool(line.strip())
            continue
        if isinstance(raw, dict):
            yield raw
    if bad:
        problems.append(f"{path}: {bad} of its lines are no JSON (half written?).")


def _files(folder: Path, page: Path) -> Iterator[LinkedFile]:
    """Yield the folder's files, with a link that works while page and folder stay in their places."""
    start = page.resolve().parent
    there = islice((path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()), _MAX_SEEN)
    for path in sorted(there)[:_MAX_FILES]:
        try:
            size = path.stat().st_size
        except OSError:
            continue
        href = quote(os.path.relpath(path.resolve(), start).encode("utf-8", "surrogateescape"))
        # A name with a colon at its beginning would be read as a scheme.
        yield LinkedFile(str(path.relative_to(folder)), f"./{href}", size)
