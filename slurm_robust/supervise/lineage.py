"""What one training remembers across its attempts and requeues: the failures since its last new step."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import msgspec

from slurm_robust.model import Failure
from slurm_robust.supervise.folder import Folder

_FILE = "lineage.json"
_MAX_FAILURES = 50


@dataclass(frozen=True)
class Lineage:
    """Failures since the last new step, oldest first, and how often the step was started anew on the same nodes."""

    id: str
    failures: tuple[Failure, ...] = ()
    restarts_in_place: int = 0

    def after(self, failure: Failure | None, *, in_place: bool) -> Lineage:
        """The lineage with one more failure."""
        failures = (*self.failures, *([failure] if failure is not None else []))[-_MAX_FAILURES:]
        return replace(self, failures=failures, restarts_in_place=self.restarts_in_place + in_place)


def load(folder: Folder, name: str) -> Lineage:
    """What the attempts before left in the job's folder; a new lineage where there is none of this name."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        found = msgspec.json.decode((folder.path / _FILE).read_bytes(), type=Lineage)
        if found.id == name:
            return found
    return Lineage(name)


def save(folder: Folder, lineage: Lineage) -> None:
    """Keep it for the next attempt; a full disk only shortens the memory."""
    folder.write(_FILE, msgspec.json.encode(lineage))
