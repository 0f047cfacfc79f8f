"""What the ranks wrote down themselves: the launches, how far each came, and when a fault struck. Pure.

See `programs/with_fault.py`, which writes the lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple


class Start(NamedTuple):
    """One rank's start."""

    at_s: float
    rank: int
    node: str
    pid: int
    launch: str


class Notes(NamedTuple):
    """All of it, in order of time.

    Attributes:
        starts: Of every rank in every launch.
        steps: `(at_s, step)` of rank 0.
        strikes: When a fault struck inside the program, and on which node.
    """

    starts: tuple[Start, ...] = ()
    steps: tuple[tuple[float, int], ...] = ()
    strikes: tuple[tuple[float, str], ...] = ()

    @property
    def launches(self) -> list[str]:
        """In the order of their first rank's start."""
        return list(dict.fromkeys(start.launch for start in self.starts))

    def ranks(self, launch: str) -> dict[int, Start]:
        """The ranks of one launch."""
        return {start.rank: start for start in self.starts if start.launch == launch}

    def step_at(self, at_s: float) -> int:
        """The highest step that was reached by then."""
        return max((step for when, step in self.steps if when <= at_s), default=0)

    def first_new_step(self, fault_at_s: float) -> tuple[float, int] | None:
        """The first step beyond what was reached at the fault that a launch after it made."""
        reached, began_s = self.step_at(fault_at_s), self.launch_after(fault_at_s)
        if began_s is None:
            return None
        return next(((when, step) for when, step in self.steps if when > began_s and step > reached), None)

    def launch_after(self, at_s: float) -> float | None:
        """When the first rank started after a moment."""
        return min((start.at_s for start in self.starts if start.at_s > at_s), default=None)

    def steps_begun_at(self, at_s: float) -> list[int]:
        """The first step of each launch that came after a moment, 0 if it made none."""
        begins = [min(s.at_s for s in self.starts if s.launch == launch) for launch in self.launches]
        ends = [*begins[1:], float("inf")]
        return [
            next((step for when, step in self.steps if begin < when <= end), 0)
            for begin, end in zip(begins, ends)  # noqa: B905 (a job that never started has no begin)
            if begin > at_s
        ]


def read(lines: Iterable[str]) -> Notes:
    """Read the lines of the file; a line that is not complete yet is skipped."""
    starts, steps, strikes = [], [], []
    for line in lines:
        try:
            note: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if "started" in note:
            starts.append(Start(note["at_s"], note["rank"], note["node"], note["started"], note["launch"]))
        elif "struck" in note:
            strikes.append((note["at_s"], note["node"]))
        elif "step" in note:
            steps.append((note["at_s"], note["step"]))
    return Notes(tuple(starts), tuple(steps), tuple(strikes))
