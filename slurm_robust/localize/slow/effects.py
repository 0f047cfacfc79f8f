"""Computes how much slower each rank is than its peers. Numbers only; `verdict` decides what they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slurm_robust.localize.slow.peers import Peers, count_independent, groups
from slurm_robust.localize.slow.robust_statistics import (
    Floats,
    Places,
    excess,
    known,
    median,
    median_around,
    middle,
    spread,
    stride,
)

ODD_STEP = 1.4
"""A step whose median is so many times the median of the steps around it is another kind of step (evaluation,
checkpoint, compilation). So is a step whose ranks differ so much more than usual."""
_AROUND = 7
_SAMPLE = 2048
"""A spread is computed from at most so many ranks."""
_CELLS = 1 << 17
"""So many cells of the table are compared at once: as many as fit into a processor's cache."""
_ODD_SPREAD, _ODD_SPREAD_MIN = 5.0, 0.03
SCALE_FLOOR = 0.003
"""GPUs of one kind differ by some tenths of a per cent at any rate: less is never called a difference."""
FEW = 12
"""With fewer ranks, it cannot be measured how much healthy ranks differ, so it is assumed."""
SCALE_FEW = 0.008


@dataclass(frozen=True)
class Effects:
    """The levels of all ranks over a window of steps.

    Attributes:
        level: The median excess of each rank over its peers, as a share (0.05: five per cent slower).
        scale: Standard deviation of the levels of healthy ranks.
        noise: Standard deviation of a healthy rank's excess from step to step.
    """

    level: Floats
    scale: float
    noise: float


class Comparison:
    """The excess of each rank over its peers of one kind.

    Args:
        peers: `role` or `twins`: the kind of peers.
        rows: One row for each rank, with one value for each usable step.
        independent: How many of the levels are independent: the level of one of two peers follows from the other's.
    """

    def __init__(self, peers: str, rows: Floats, independent: int) -> None:
        self.peers, self.rows, self.independent = peers, rows, independent
        self._effects: dict[int, Effects] = {}

    def effects(self, first: int = 0) -> Effects:
        """Return the levels, and how much healthy ranks differ, over the steps from index `first` on."""
        if first not in self._effects:
            self._effects[first] = self._summed(self.rows[:, first:])
        return self._effects[first]

    def _summed(self, window: Floats) -> Effects:
        level = median(window)
        there = known(level)
        noise = _noise(window, level)
        # The standard deviation of a median of so many steps, from step-to-step noise alone.
        shaky = 1.2533 * noise / math.sqrt(max(1, window.shape[1]))
        free = min(self.independent, len(there))
        # The median of few peers is as uncertain as the rank itself: twice the variance against a single one.
        against = len(there) / (len(there) - free) - 1 if 0 < free < len(there) else 1.0
        few = SCALE_FEW * math.sqrt(1 + 1 / max(1.0, against / 1.57)) if against < 3 else SCALE_FEW
        seen = float(spread(there, middle(there))) * uncertain(free) if free >= FEW else 0.0
        floor = SCALE_FLOOR if free >= FEW else few
        return Effects(level, max(seen, math.hypot(shaky, floor)), noise)


def usable_steps(rows: Floats) -> Places:
    """Return the indices of the steps (rows of the table) that are steps of training like the steps around them."""
    seen = rows[:, :: stride(rows.shape[1], _SAMPLE)]
    middles = median(seen)
    spreads = spread(seen, middles[:, None])
    spreads = np.divide(spreads, middles, out=np.full(len(rows), np.nan), where=middles > 0)
    near = median_around(middles, _AROUND)
    odd = (middles > ODD_STEP * near) | (middles < near / ODD_STEP)
    odd |= spreads > max(_ODD_SPREAD * middle(spreads), _ODD_SPREAD_MIN)
    return np.flatnonzero((middles > 0) & ~odd)


def by_role(table: Floats, peers: Peers) -> Comparison:
    """Return the comparison of each rank with the other ranks of its role."""
    return Comparison("role", _compared(table, peers.role), count_independent(peers.role))


def by_twins(table: Floats, peers: Peers, twins: Places) -> Comparison:
    """Return the comparison of each rank with its twins, less the usual cost of the rank's place among them."""
    rows = _compared(table, twins)
    levels = median(rows)
    for places in groups(peers.slice_of):
        ordered = np.sort(levels[places])
        count = np.isfinite(ordered).sum(axis=1)
        # Take the lower of the two middle values: a slow rank must not pass for usual. Among few values a low one is
        # chance.
        usual = np.take_along_axis(ordered, np.maximum(count - 1, 0)[:, None] // 2, 1)[:, 0]
        usual = np.where(count > 3, usual, np.where(count > 1, np.maximum(usual, 0.0), 0.0))
        rows[places] -= usual[:, None, None]
    return Comparison("twins", rows, count_independent(twins))


def _compared(table: Floats, keys: Places) -> Floats:
    """Return the excess of each rank over ranks with an equal key: takes steps by ranks, returns ranks by steps."""
    rows = np.full(table.shape, np.nan)
    at_once = max(1, _CELLS // table.shape[1])
    for places in groups(keys):
        for first in range(0, len(table) if places.shape[1] > 1 else 0, at_once):
            rows[first : first + at_once, places] = excess(table[first : first + at_once, places])
    return np.ascontiguousarray(rows.T)


def _noise(rows: Floats, level: Floats) -> float:
    """Return the median over ranks of the standard deviation of their excess from step to step; 0 if unknown."""
    some = slice(None, None, stride(len(rows), _SAMPLE))
    found = middle(spread(rows[some], level[some, None]))
    return found if math.isfinite(found) else 0.0


def uncertain(count: int) -> float:
    """Return the factor by which a spread of so few values is widened: it is itself uncertain."""
    return 1 + 8 / max(1, count)
