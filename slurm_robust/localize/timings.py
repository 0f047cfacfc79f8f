"""Holds how long each step took each rank: one table, steps by ranks, with gaps if a time was not reported."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

MAX_STEPS = 1000
"""How many steps are kept, the last ones: a machine may have been different a thousand steps ago."""
MAX_S = 1e9
"""The longest duration, thirty years; an integer of 400 digits, which JSON may hold, does not fit into a float."""
NAN = math.nan
_Row = tuple["array[float]", "array[float]", "array[float]"]
"""Total, compute and communication of one step: a value for each rank, in the order in which the ranks came."""


@dataclass(frozen=True)
class Timing:
    """One step of one rank, seconds; None if it was not reported.

    Attributes:
        total_s: Time from the end of the step before to the end of this step.
        compute_s: The rank's own work, without waiting for other ranks.
        communication_s: Time in collectives and exchanges, waiting for other ranks included.
    """

    rank: int
    step: int
    total_s: float | None = None
    compute_s: float | None = None
    communication_s: float | None = None
    node: str = ""


@dataclass(frozen=True)
class StepTimings:
    """The times of steps by ranks, seconds; NaN if a time was not reported.

    Attributes:
        ranks: The ranks in order; the place of a rank here is its place in each row.
        steps: The steps in order.
        nodes: Rank → its node, if reported.
        total: One row for each step, with one value for each rank.
        compute: The own work of the ranks, in such rows.
        derived: Ranks whose own work is only known as total less communication, with all unmeasured time in it.
        layout: Parallel sizes that came with the timings, empty if none did.
    """

    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    nodes: Mapping[int, str] = field(default_factory=dict)
    total: tuple[array[float], ...] = ()
    compute: tuple[array[float], ...] = ()
    communication: tuple[array[float], ...] = ()
    layout: Mapping[str, int] = field(default_factory=dict)
    layout_order: str = ""
    derived: frozenset[int] = frozenset()


def usable(value: object) -> float | None:
    """Return a duration in seconds; None if the value cannot be one: negative, too long, NaN, not a number."""
    if type(value) in (int, float) and 0 <= value <= MAX_S:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    return None


def without(timings: StepTimings, ranks: Collection[int]) -> StepTimings:
    """Return the table without these ranks."""
    kept = [at for at, rank in enumerate(timings.ranks) if rank not in ranks]
    total, compute, communication = (
        tuple(array("d", [row[at] for at in kept]) for row in rows)
        for rows in (timings.total, timings.compute, timings.communication)
    )
    return replace(
        timings,
        ranks=tuple(timings.ranks[at] for at in kept),
        nodes={rank: node for rank, node in timings.nodes.items() if rank not in ranks},
        derived=timings.derived - set(ranks),
        total=total,
        compute=compute,
        communication=communication,
    )


class Collector:
    """Takes timings in any order, and makes the table. Of a step reported twice by a rank, the later report counts.

    Args:
        max_steps: How many steps are kept, the highest ones; each takes 24 bytes for each rank.
    """

    def __init__(self, max_steps: int = MAX_STEPS) -> None:
        self.nodes: dict[int, str] = {}
        self._max_steps = max_steps
        self._column: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._rows: dict[int, _Row] = {}
        self._derived: set[int] = set()
        self._measured: set[int] = set()

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self._rows)

    @property
    def last_step(self) -> int:
        """The highest step, -1 if there is none."""
        return max(self._rows, default=-1)

    def add(self, timing: Timing) -> str:
        """Take one timing; return what is odd about it: `again`, `back`, `moved`, or an empty text."""
        column = self._column.setdefault(timing.rank, len(self._column))
        odd, known = "", self.nodes.get(timing.rank, "")
        if timing.node and known and known != timing.node:
            # Times on another machine do not tell anything about this machine.
            for row in self._rows.values():
                _put(row, column, NAN, NAN, NAN)
            odd = "moved"
        elif timing.step < self._last.get(timing.rank, -1):
            odd = "back"
        self._last[timing.rank] = timing.step
        if timing.node:
            self.nodes[timing.rank] = timing.node
        cells = self._row(timing.step)
        if cells is None:
            return odd
        compute, total, communication = timing.compute_s, timing.total_s, timing.communication_s
        if compute is not None:
            self._measured.add(timing.rank)
        elif total is not None and communication is not None and communication <= total:
            compute = total - communication
            self._derived.add(timing.rank)
        if total is None and compute is not None and communication is not None:
            total = compute + communication
        if _put(cells, column, _or_nan(total), _or_nan(compute), _or_nan(communication)):
            odd = odd if odd == "moved" else "again"
        return odd

    def _row(self, step: int) -> _Row | None:
        row = self._rows.get(step)
        if row is None:
            if len(self._rows) >= self._max_steps:
                oldest = min(self._rows)
                if step < oldest:
                    return None
                del self._rows[oldest]
            row = self._rows[step] = (array("d"), array("d"), array("d"))
        return row

    def table(self, layout: Mapping[str, int] | None = None, order: str = "") -> StepTimings:
        """Return the table of all timings that were taken so far."""
        ranks = tuple(sorted(self._column))
        steps = tuple(sorted(self._rows))
        columns = [self._column[rank] for rank in ranks]
        in_order = columns == list(range(len(columns)))
        three: list[tuple[array[float], ...]] = []
        for kind in range(3):
            rows = []
            for step in steps:
                row = self._rows[step][kind][:]
                row.extend([NAN] * (len(ranks) - len(row)))
                rows.append(row if in_order else array("d", [row[c] for c in columns]))
            three.append(tuple(rows))
        total, compute, communication = three
        derived, sizes = frozenset(self._derived - self._measured), dict(layout or {})
        return StepTimings(ranks, steps, dict(self.nodes), total, compute, communication, sizes, order, derived)


def _put(row: _Row, column: int, *values: float) -> bool:
    """Set a rank's three values; return whether it already had a value."""
    had = False
    for kind, value in zip(row, values, strict=True):
        if len(kind) <= column:
            kind.extend([NAN] * (column + 1 - len(kind)))
        had = had or not math.isnan(kind[column])
        kind[column] = value
    return had


def _or_nan(value: float | None) -> float:
    return NAN if value is None else value
