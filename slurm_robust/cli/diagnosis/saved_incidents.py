"""Incidents as a supervisor saved them in a job's folder. The job may write there, so all is read as untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from slurm_robust.core.model import Incident, Signal
from slurm_robust.localize import circumstances
from slurm_robust.localize.circumstances import CIRCUMSTANCES_FILE, Circumstances, CircumstancesError
from slurm_robust.localize.evidence import RankExit
from slurm_robust.wire import plain_file

INCIDENT_FILE = "incident.json"
_MAX_BYTES = 64 << 20
_MAX_FOLDERS = 200
"""The newest; a job with more has a story to read."""
_CAUSE_KEYS = ("category", "blame", "signature", "line", "place")


@dataclass(frozen=True)
class SavedIncident:
    """The contents of an incident's folder.

    Attributes:
        cause: The diagnosis that the incident's supervisor kept; empty if there is none.
        problems: A sentence for each file that cannot be used.
    """

    folder: Path
    incident: Incident | None = None
    circumstances: Circumstances | None = None
    cause: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Return the incident's id; the folder's name if the incident cannot be read."""
        return self.incident.id if self.incident is not None else self.folder.name

    @property
    def at_s(self) -> float:
        """When the incident was opened, seconds since the epoch; if that is not known, when its first rank ended."""
        if self.incident is not None:
            return self.incident.opened_at_s
        return min((end.at_s for end in self.exits), default=0.0)

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """The ranks that ended, the first one first."""
        known = self.circumstances.exits if self.circumstances is not None else ()
        return tuple(sorted(known, key=lambda end: end.at_s))

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals of the incident, and those that nodes reported, in order of time."""
        of_incident = self.incident.signals if self.incident is not None else ()
        of_nodes = self.circumstances.signals if self.circumstances is not None else ()
        told = {(s.kind, s.at_s, s.node, s.rank, s.detail): s for s in (*of_incident, *of_nodes)}
        return tuple(sorted(told.values(), key=lambda s: s.at_s))


def read_incident(folder: Path, *, whole: bool = True) -> SavedIncident | None:
    """Return the incident in a folder; None if the folder holds none.

    With `whole` false, only its page is read.
    """
    problems: list[str] = []
    data = _read(folder / INCIDENT_FILE, problems)
    incident, cause = _incident(folder, data, problems) if data else (None, {})
    known = None
    data = _read(folder / CIRCUMSTANCES_FILE, problems) if whole else b""
    if data:
        try:
            known = circumstances.decode(data)
        except CircumstancesError as error:
            problems.append(f"{folder / CIRCUMSTANCES_FILE}: {error}")
    if incident is None and known is None and not problems:
        return None
    return SavedIncident(folder, incident, known, cause, tuple(problems))


def incidents_in(job_folder: Path, *, whole: bool = True) -> list[SavedIncident]:
    """Return the incidents of a job's folder, newest first; empty if it is not one. `whole` as in `read_incident`."""
    try:
        folders = sorted((path for path in job_folder.iterdir() if path.is_dir()), key=lambda p: -p.stat().st_mtime)
    except OSError:
        return []
    found = (read_incident(folder, whole=whole) for folder in folders[:_MAX_FOLDERS])
    return sorted((one for one in found if one is not None), key=lambda one: -one.at_s)


def _incident(folder: Path, data: bytes, problems: list[str]) -> tuple[Incident | None, dict[str, str]]:
    try:
        incident = msgspec.json.decode(data, type=Incident)
        raw: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        problems.append(f"{folder / INCIDENT_FILE}: not an incident: {str(error)[:160]}")
        return None, {}
    return incident, cause_of(raw.get("cause"))


def cause_of(raw: object) -> dict[str, str]:
    """Return the known keys of a kept diagnosis that are texts."""
    told = raw if isinstance(raw, dict) else {}
    return {key: told[key] for key in _CAUSE_KEYS if isinstance(told.get(key), str)}


def _read(path: Path, problems: list[str]) -> bytes:
    try:
        data = plain_file.read(path, _MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return b""
    if len(data) > _MAX_BYTES:
        problems.append(f"{path}: more than {_MAX_BYTES >> 20} MiB: not read")
        return b""
    return data
