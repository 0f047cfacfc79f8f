"""How much slower than its peers is each rank? Numbers only; what they mean is decided in `judge`."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from slurm_robust.localize.slow.peers import Key, Peers, groups
from slurm_robust.localize.slow.robust_statistics import NAN, excess, known, median, sample, spread

ODD_STEP = 1.4
"""A step whose median is so many times that of the steps around it is another kind of step (evaluation, checkpoint,
compilation), and one whose ranks differ so much more than usual, too."""
_AROUND = 7
_SAMPLE = 2048
"""Ranks that a spread is taken of, where there are more."""
_ODD_SPREAD, _ODD_SPREAD_MIN = 5.0, 0.03
SCALE_FLOOR = 0.003
"""GPUs of one kind differ by some tenths of a per cent whatever is done: less is never called a difference."""
FEW = 12
"""With fewer ranks than this, how much healthy ones differ cannot be seen, and is assumed."""
SCALE_FEW = 0.008


@dataclass(frozen=True)
class Effects:
    """Excess of each rank over its peers, as shares (0.05: five per cent slower).

    Attributes:
        rows: One row a rank, one value a usable step.
        level: Each rank's median excess over the window.
        scale: Standard deviation of the levels of healthy ranks.
        noise: Standard deviation of a healthy rank's excess from step to step.
    """

    rows: Sequence[Sequence[float]]
    level: tuple[float, ...]
    scale: float
    noise: float

    def z(self, at: int) -> float:
        """How far a rank's level is above what healthy ranks differ by; NaN where it has none."""
        return self.level[at] / self.scale if self.scale > 0 else NAN


def usable_steps(rows: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the steps that are steps of training like those around them."""
    seen = [sample(row, _SAMPLE) for row in rows]
    middles = [median(row) for row in seen]
    apart = [spread(row, middle) / middle if middle > 0 else NAN for row, middle in zip(seen, middles, strict=True)]
    usual = median(apart)
    found = []
    for at, middle in enumerate(middles):
        near = median(chain(middles[max(0, at - _AROUND) : at], middles[at + 1 : at + 1 + _AROUND]))
        if not middle > 0 or middle > ODD_STEP * near or middle < near / ODD_STEP:
            continue
        if apart[at] > max(_ODD_SPREAD * usual, _ODD_SPREAD_MIN):
            continue
        found.append(at)
    return found


def by_role(rows: Sequence[array[float]], peers: Peers) -> tuple[tuple[float, ...], ...]:
    """Excess of each rank over the others of its role: one row a rank."""
    return _compared(rows, peers.role)


def by_twins(rows: Sequence[array[float]], peers: Peers) -> tuple[tuple[float, ...], ...]:
    """Excess of each rank over its twins, less what its place among them always costs: one row a rank."""
    assert peers.twins is not None
    compared = _compared(rows, peers.twins)
    levels = [median(row) for row in compared]
    usual: dict[Key, float] = {}
    for members in groups(peers.slice_of):
        found = known(levels[at] for at in members)
        # The lower one of two in the middle: a slow rank must not pass for what is usual. Of few, a low one is chance.
        middle = found[(len(found) - 1) // 2] if len(found) > 1 else 0.0
        usual[peers.slice_of[members[0]]] = middle if len(found) > 3 else max(0.0, middle)
    less = [usual[key] if math.isfinite(usual[key]) else 0.0 for key in peers.slice_of]
    return tuple(tuple(v - off for v in row) for row, off in zip(compared, less, strict=True))


def _compared(rows: Sequence[array[float]], keys: Sequence[Key]) -> tuple[tuple[float, ...], ...]:
    members = groups(keys)
    if len(members) == 1:
        return tuple(zip(*(excess(row) for row in rows), strict=True))
    columns = []
    for row in rows:
        out = [NAN] * len(row)
        for group in members:
            if len(group) > 1:
                for at, value in zip(group, excess([row[at] for at in group]), strict=True):
                    out[at] = value
        columns.append(out)
    return tuple(zip(*columns, strict=True))


def noise(rows: Sequence[Sequence[float]], level: Sequence[float] | None = None) -> float:
    """Standard deviation of a rank's excess from step to step, of the rank in the middle; 0 where nothing is known."""
    some = sample(range(len(rows)), _SAMPLE)
    found = median(spread(rows[at], median(rows[at]) if level is None else level[at]) for at in some)
    return found if math.isfinite(found) else 0.0


def uncertain(count: int) -> float:
    """By how much a spread seen in so many is to be widened: in few, it is itself uncertain."""
    return 1 + 8 / max(1, count)


def summed(rows: Sequence[Sequence[float]], free: int, first: int = 0) -> Effects:
    """Levels, and what healthy ranks differ by, over the steps from `first` on.

    Args:
        rows: As `by_role` or `by_twins` gives them.
        free: How many of the levels are independent (`peers.free`): of two peers, one is as fast as the other is slow.
        first: Index of a step.
    """
    window = [row[first:] for row in rows] if first else rows
    level = tuple(median(row) for row in window)
    there = known(level)
    jitter = noise(window, level)
    steps = len(window[0]) if window else 0
    # Of a median of so many steps, from step-to-step noise alone.
    shaky = 1.2533 * jitter / math.sqrt(max(1, steps))
    free = min(free, len(there))
    # The median of few peers is as uncertain as the rank itself: twice the variance against a single one.
    against = len(there) / (len(there) - free) - 1 if 0 < free < len(there) else 1.0
    few = SCALE_FEW * math.sqrt(1 + 1 / max(1.0, against / 1.57)) if against < 3 else SCALE_FEW
    seen = spread(there, median(there)) * uncertain(free) if free >= FEW else 0.0
    floor = SCALE_FLOOR if free >= FEW else few
    scale = max(seen, math.hypot(shaky, floor))
    return Effects(rows, level, scale, jitter)
