"""Slow nodes and ranks among the effects: who stands out, since when, and how steadily. Decides nothing about blame."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.localize.slow.effects import FEW, SCALE_FEW, SCALE_FLOOR, Effects, summed, uncertain
from slurm_robust.localize.slow.robust_statistics import binomial_tail, change_at, known, median, spread, z_limit

MIN_EFFECT = 0.025
"""Healthy GPUs of one kind differ by a per cent or two; a job that loses less than this is left alone."""
MIN_EFFECT_LATE = 0.04
"""What began to be slow: over fewer steps, less is chance, and what lasts shows over all of them later."""
CHANCE = 5e-4
"""With which a job without a slow machine may show one, if healthy ranks differ as normal values do."""
MIN_STEPS = 10
_HALF_OF_ALL = 0.5
_STEADY = 0.4
"""In each half of the window the effect has at least this share of its whole."""
_BURST_MIN, _BURST_SHARE, _BURST_COST = 0.05, 0.1, 0.012
_BURST_STEPS = 6
_BURST_CHANCE = 1e-6
"""Pauses of a program come in bunches, so counts vary more than independent ones would."""


@dataclass(frozen=True)
class Finding:
    """A node, or a rank, that stands out.

    Attributes:
        members: Places in the table of the ranks that are slow.
        share: How much slower: the median excess over its peers while it is slow.
        hits: Steps in which it was slower than its peers by more than half of that.
        steps: Steps that were looked at.
        first: Index (among the usable steps) from which it is slow, 0 for since the start.
        z: Standard deviations of healthy ranks.
        how: `steady`, or `bursts`.
        by: `role` or `twins`: in which comparison.
        seen_from: Index from which steps were looked at.
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
    """Steps from `first` to the last, one of `looks` such, in one comparison."""

    first: int
    looks: int
    by: str

    @property
    def least(self) -> float:
        """The smallest effect that counts."""
        return MIN_EFFECT_LATE if self.first else MIN_EFFECT


def windows(steps: int) -> list[int]:
    """First indices of the windows that are looked at: all, and shorter and shorter ends of it."""
    return [first for first in (0, steps // 2, steps * 3 // 4) if steps - first >= MIN_STEPS or not first]


def sharp(rows: Sequence[Sequence[float]], free: int) -> bool:
    """Whether these effects show everything that is large enough to count: no other comparison can add to it."""
    effects = summed(rows, free)
    told = all(math.isfinite(level) for level in effects.level)
    return told and z_limit(len(rows), CHANCE) * effects.scale < MIN_EFFECT


def steady(rows: Sequence[Sequence[float]], free: int, nodes: Mapping[int, str], by: str) -> list[Finding]:
    """Nodes and ranks that are slow all the time, or from some step to the end; `free` as in `summed`."""
    steps = len(rows[0]) if rows else 0
    found: dict[int, Finding] = {}
    firsts = windows(steps)
    for first in firsts:
        effects = summed(rows, free, first)
        window = _Window(first, len(firsts) if first else 1, by)
        for finding in (*_nodes(effects, nodes, window), *_ranks(effects, window)):
            if not any(at in found for at in finding.members):
                found.update(dict.fromkeys(finding.members, finding))
    return list(dict.fromkeys(found.values()))


def _nodes(effects: Effects, nodes: Mapping[int, str], window: _Window) -> list[Finding]:
    """All ranks of a node together: their common level stands out where each alone is lost in the noise."""
    members: dict[str, list[int]] = {}
    for at, node in nodes.items():
        if math.isfinite(effects.level[at]):
            members.setdefault(node, []).append(at)
    levels = {node: median(effects.level[at] for at in here) for node, here in members.items() if len(here) > 1}
    if not levels:
        return []
    scale = effects.scale
    if len(levels) >= FEW:
        scale = max(spread(list(levels.values()), median(levels.values())) * uncertain(len(levels)), SCALE_FLOOR)
    limit = z_limit(len(levels) * window.looks, CHANCE)
    found = []
    for node, level in levels.items():
        if level < window.least or level < limit * scale:
            continue
        alike = [at for at in members[node] if effects.level[at] > level * _HALF_OF_ALL]
        low = min(effects.level[at] for at in members[node])
        if len(alike) * 4 >= len(members[node]) * 3 and low > -SCALE_FEW:
            row = [median(column) for column in zip(*(effects.rows[at][window.first :] for at in alike), strict=True)]
            if _lasts(row, level):
                found.append(_steady_finding(effects, tuple(alike), window, level / scale))
    return found


def _ranks(effects: Effects, window: _Window) -> list[Finding]:
    told = [at for at, level in enumerate(effects.level) if math.isfinite(level)]
    least = max(window.least, z_limit(len(told) * window.looks, CHANCE) * effects.scale)
    found = []
    for at in told:
        level = effects.level[at]
        if level >= least and _lasts(effects.rows[at][window.first :], level):
            found.append(_steady_finding(effects, (at,), window, effects.z(at)))
    return found


def _lasts(row: Sequence[float], level: float) -> bool:
    half = len(row) // 2
    return median(row[:half]) > _STEADY * level and median(row[half:]) > _STEADY * level


def _steady_finding(effects: Effects, members: tuple[int, ...], window: _Window, z: float) -> Finding:
    whole = [median(column) for column in zip(*(effects.rows[at] for at in members), strict=True)]
    there = known(whole[window.first :])
    level = median(there)
    hits = sum(v > level / 2 for v in there)
    # Where it was slow before the window too, the window only showed it best.
    began = window.first > 0 and not median(whole[: window.first]) > _STEADY * level
    since = (change_at(whole) or window.first) if began else 0
    return Finding(members, level, hits, len(there), since, z, "steady", window.by, window.first)


def bursts(rows: Sequence[Sequence[float]], free: int, by: str) -> list[Finding]:
    """Ranks that are slow in far more steps than others are, now and then."""
    if not rows or not rows[0]:
        return []
    effects = summed(rows, free)
    limit = max(_BURST_MIN, 4 * effects.noise)
    there = [len(row) if math.isfinite(sum(row)) else sum(map(math.isfinite, row)) for row in rows]
    counts = [sum([v > limit for v in row]) for row in rows]
    n = median(there)
    if not n >= MIN_STEPS:
        return []
    usual = (median(count for count, steps in zip(counts, there, strict=True) if steps) + 1) / n
    found = []
    for at, (count, steps) in enumerate(zip(counts, there, strict=True)):
        if count < max(_BURST_STEPS, _BURST_SHARE * steps):
            continue
        high = [v for v in rows[at] if v > limit]
        # One long pause (a log file, a garbage collection) must not pass for many short ones.
        cost = sum(min(v, 2 * median(high)) for v in high) / steps
        if cost < _BURST_COST or binomial_tail(count, steps, usual) * len(rows) > _BURST_CHANCE:
            continue
        first = next(index for index, v in enumerate(rows[at]) if v > limit)
        found.append(Finding((at,), median(high), count, steps, first, 0.0, "bursts", by))
    return found
