"""Finds slow nodes and ranks, since when they are slow, and how steadily. Decides nothing about blame."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from slurm_robust.localize.slow.effects import FEW, SCALE_FEW, SCALE_FLOOR, Comparison, Effects, uncertain
from slurm_robust.localize.slow.peers import groups
from slurm_robust.localize.slow.robust_statistics import (
    Floats,
    Places,
    binomial_tail,
    change_at,
    known,
    median,
    middle,
    spread,
    z_limit,
)

MIN_EFFECT = 0.025
"""The least effect that counts. Healthy GPUs of one kind differ by a per cent or two, and less costs the job little."""
MIN_EFFECT_LATE = 0.04
"""The least effect of slowness that began late: over few steps less is chance, and lasting slowness shows later."""
CHANCE = 5e-4
"""The chance that a job without a slow machine shows one, if healthy ranks differ as normal values do."""
MIN_STEPS = 10
_HALF_OF_ALL = 0.5
_STEADY = 0.4
"""In each half of the window, the effect must be at least this share of its level over the whole window."""
_BURST_MIN, _BURST_SHARE, _BURST_COST = 0.05, 0.1, 0.012
_BURST_STEPS = 6
_BURST_CHANCE = 1e-6
"""Pauses of a program come in bunches, so counts vary more than independent ones would."""


@dataclass(frozen=True)
class Outlier:
    """A node, or a rank, that is slower than its peers.

    Attributes:
        members: Places in the table of the ranks that are slow.
        share: How much slower: the median excess over its peers while it is slow.
        hits: Number of steps in which it was slower than its peers by more than half of `share`.
        steps: Number of steps that were examined.
        first: Index (among the usable steps) from which it is slow, 0 for since the start.
        z: The excess in standard deviations of healthy ranks.
        how: `steady`, or `bursts`.
        by: The comparison, `role` or `twins`.
        seen_from: Index of the first step that was examined.
    """

    members: tuple[int, ...]
    share: float
    hits: int
    steps: int
    first: int
    z: float
    how: str
    by: str
    seen_from: int = 0


@dataclass(frozen=True)
class _Window:
    """The steps from `first` to the last in one comparison; one of `windows` windows."""

    compared: Comparison
    first: int
    windows: int

    @property
    def rows(self) -> Floats:
        return self.compared.rows[:, self.first :]

    @property
    def effects(self) -> Effects:
        return self.compared.effects(self.first)

    @property
    def least(self) -> float:
        """The smallest effect that counts."""
        return MIN_EFFECT_LATE if self.first else MIN_EFFECT


def sharp(compared: Comparison) -> bool:
    """Return whether these effects show everything that is large enough to count: no other comparison is needed."""
    effects = compared.effects()
    limit = z_limit(len(compared.rows), CHANCE) * effects.scale
    return bool(np.isfinite(effects.level).all()) and limit < MIN_EFFECT


def steady(compared: Comparison, nodes: Places) -> list[Outlier]:
    """Return nodes and ranks that are slow all the time, or from some step to the end.

    Args:
        compared: The excess over the peers.
        nodes: The number of each rank's node, -1 if it is not known.
    """
    steps = compared.rows.shape[1]
    # All steps, then the last half, then the last quarter.
    firsts = [first for first in (0, steps // 2, steps * 3 // 4) if steps - first >= MIN_STEPS or not first]
    found: dict[int, Outlier] = {}
    for first in firsts:
        window = _Window(compared, first, len(firsts) if first else 1)
        for members, z in (*_slow_nodes(window, nodes), *_slow_ranks(window)):
            if not any(at in found for at in members):
                found.update(dict.fromkeys(members, _steady_outlier(window, members, z)))
    return list(dict.fromkeys(found.values()))


def _slow_nodes(window: _Window, nodes: Places) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield slow nodes, with all their ranks: a common level shows even if each single rank is lost in the noise."""
    effects = window.effects
    here = np.flatnonzero(np.isfinite(effects.level) & (nodes >= 0))
    ranks_of = [here[places] for places in groups(nodes[here]) if places.shape[1] > 1]
    if not ranks_of:
        return
    levels_of = [median(effects.level[ranks]) for ranks in ranks_of]
    levels = np.concatenate(levels_of)
    scale = effects.scale
    if len(levels) >= FEW:
        scale = max(float(spread(levels, middle(levels))) * uncertain(len(levels)), SCALE_FLOOR)
    least = max(window.least, z_limit(len(levels) * window.windows, CHANCE) * scale)
    slow = [
        (ranks[row], float(level[row]))
        for ranks, level in zip(ranks_of, levels_of, strict=True)
        for row in np.flatnonzero(level >= least)
    ]
    for ranks, level in sorted(slow, key=lambda node: int(nodes[node[0][0]])):
        alike = ranks[effects.level[ranks] > level * _HALF_OF_ALL]
        most = len(alike) * 4 >= len(ranks) * 3 and effects.level[ranks].min() > -SCALE_FEW
        if most and _lasts(median(window.rows[alike], axis=0), level):
            yield tuple(alike.tolist()), level / scale


def _slow_ranks(window: _Window) -> Iterator[tuple[tuple[int, ...], float]]:
    effects = window.effects
    count = int(np.isfinite(effects.level).sum())
    least = max(window.least, z_limit(count * window.windows, CHANCE) * effects.scale)
    slow = np.flatnonzero(effects.level >= least)
    level = effects.level[slow]
    for at in slow[_lasts(window.rows[slow], level)].tolist():
        yield (at,), float(effects.level[at]) / effects.scale if effects.scale > 0 else math.nan


def _lasts(rows: Floats, level: Floats | float) -> NDArray[np.bool_]:
    """Return whether both halves of the window show the effect."""
    half = rows.shape[-1] // 2
    return (median(rows[..., :half]) > _STEADY * level) & (median(rows[..., half:]) > _STEADY * level)


def _steady_outlier(window: _Window, members: tuple[int, ...], z: float) -> Outlier:
    whole = median(window.compared.rows[list(members)], axis=0)
    there = known(whole[window.first :])
    level = middle(there)
    hits = int((there > level / 2).sum())
    # If it was slow before the window, too, the window only showed its slowness best.
    began = window.first > 0 and not middle(whole[: window.first]) > _STEADY * level
    since = (change_at(whole) or window.first) if began else 0
    return Outlier(members, level, hits, len(there), since, z, "steady", window.compared.peers, window.first)


def bursts(compared: Comparison) -> list[Outlier]:
    """Return ranks that are slow in some steps, and in far more steps than other ranks are."""
    rows = compared.rows
    limit = max(_BURST_MIN, 4 * compared.effects().noise)
    steps, hits = np.isfinite(rows).sum(axis=1), (rows > limit).sum(axis=1)
    usual_steps = middle(steps.astype(np.float64))
    if not usual_steps >= MIN_STEPS:
        return []
    usual = (middle(hits[steps > 0].astype(np.float64)) + 1) / usual_steps
    tail = cache(binomial_tail)
    often = np.flatnonzero(hits >= np.maximum(_BURST_STEPS, _BURST_SHARE * steps))
    high = np.where(rows[often] > limit, rows[often], np.nan)
    share = median(high)
    # One long pause (a log file, a garbage collection) must not pass for many short ones.
    cost = np.nansum(np.minimum(high, 2 * share[:, None]), axis=1) / np.maximum(steps[often], 1)
    found = []
    for at, level, lost in zip(often.tolist(), share.tolist(), cost.tolist(), strict=True):
        chance = tail(int(hits[at]), int(steps[at]), usual) * len(rows)
        if lost >= _BURST_COST and chance <= _BURST_CHANCE:
            first = int(np.argmax(rows[at] > limit))
            found.append(Outlier((at,), level, int(hits[at]), int(steps[at]), first, 0.0, "bursts", compared.peers))
    return found
