"""What a part found: its steps, and how it ended."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class Status(str, Enum):
    """What came of a step."""

    HELD = "held"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Step:
    """One thing that was tried.

    Attributes:
        name: What was tried.
        sentence: What came of it; for `NOT_RUN`, why it could not be tried.
        figures: Named values, units in the names.
        took_s: Seconds since the step before.
    """

    name: str
    status: Status
    sentence: str
    figures: dict[str, Any] = field(default_factory=dict)
    took_s: float = 0.0


@dataclass(frozen=True)
class PartOutcome:
    """All of one part.

    Attributes:
        ended: Empty if it came to its end; else what stopped it.
        log_tail: The last of what it printed.
    """

    part: str
    steps: tuple[Step, ...]
    ended: str
    took_s: float
    log_tail: str = ""

    @property
    def failed(self) -> bool:
        """Whether something did not hold, or the part did not come to its end."""
        return bool(self.ended) or any(step.status is Status.FAILED for step in self.steps)


def write(path: Path, step: Step) -> None:
    """Append a step to a part's file; it is on the disk when this returns."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(step), default=str) + "\n")


def read(path: Path) -> tuple[Step, ...]:
    """All whole steps of a part's file; a part that was killed may leave half a line."""
    if not path.exists():
        return ()
    steps = []
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            found = json.loads(line)
            steps.append(Step(**{**found, "status": Status(found["status"])}))
    return tuple(steps)
