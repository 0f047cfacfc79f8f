"""Reads the causes of incidents from the incidents' own folders.

Users own these folders, so only the form of a text is believed. Reading never leaves a folder: neither the folder nor
its file may be a link, the file must be a regular one, and its size is bounded. A folder that the caller cannot read is
skipped and counted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from slurm_robust.diagnose.taxonomy import Blame
from slurm_robust.report.facts import ClosedIncident
from slurm_robust.wire import plain_file

FILE = "incident.json"
MAX_BYTES = 8 << 20
"""The merged stacks stand in it, too."""
DEADLINE_S = 10.0
"""The time limit for all folders together: a file system may be slow."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_CATEGORY = re.compile(r"[a-z][a-z0-9_]{0,39}")
_BLAMES = frozenset(blame.value for blame in Blame)


def with_causes(
    incidents: Iterable[ClosedIncident], clock_s: Callable[[], float]
) -> tuple[tuple[ClosedIncident, ...], tuple[str, ...]]:
    """Return the incidents with category and blame of what broke, newest first as long as there is time; and doubts."""
    incidents = tuple(incidents)
    began_s, causes, unreadable, late = clock_s(), dict[str, tuple[str, str]](), 0, 0
    for incident in reversed(incidents):
        if not incident.folder:
            continue
        if clock_s() - began_s > DEADLINE_S:
            late += 1
            continue
        try:
            causes[incident.key] = _cause(incident)
        except (OSError, ValueError, RecursionError):
            unreadable += 1
    doubts = []
    if unreadable:
        doubts.append(
            f"{_count(unreadable)} cannot be read (gone, or closed to this user): what broke there is not known."
        )
    if late:
        doubts.append(f"The folders of {late} older incidents were not read: those before took {DEADLINE_S:.0f} s.")
    found = (replace(i, category=causes[i.key][0], blame=causes[i.key][1]) if i.key in causes else i for i in incidents)
    return tuple(found), tuple(doubts)


def _count(number: int) -> str:
    return "The folder of 1 incident" if number == 1 else f"The folders of {number} incidents"


def _cause(incident: ClosedIncident) -> tuple[str, str]:
    """Category and blame of what broke; empty if the file does not say, or not in the form of a category."""
    if not _NAME.fullmatch(incident.id):
        raise ValueError(incident.id)
    raw = json.loads(_content(incident.folder, incident.id))
    cause: Any = raw.get("cause") if isinstance(raw, dict) else None
    if not isinstance(cause, dict):
        return "", ""
    category, blame = str(cause.get("category", "")), str(cause.get("blame", ""))
    return category if _CATEGORY.fullmatch(category) else "", blame if blame in _BLAMES else ""


def _content(folder: str, name: str) -> bytes:
    """Return the file's content, opened step by step without following links."""
    # The job's own folder may be reached by links above it: home folders are.
    job = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=job)
        try:
            content = plain_file.read(FILE, MAX_BYTES + 1, inside=inner)
        finally:
            os.close(inner)
    finally:
        os.close(job)
    if len(content) > MAX_BYTES:
        raise ValueError(f"not a file of at most {MAX_BYTES} bytes")
    return content
