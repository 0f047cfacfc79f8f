"""Computes median, 90th percentile and number of measured values, and how sure the median is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FEW = 1000
_Z95 = 1.959963984540054


@dataclass(frozen=True)
class Spread:
    """The spread of some measured values. Without values, every field except `n` is None.

    Attributes:
        low: The median is at least this, with 95 % confidence; None with fewer than six values.
        high: The median is at most this, with 95 % confidence; None with fewer than six values.
    """

    n: int = 0
    median: float | None = None
    p90: float | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which this share of the sorted values lies, linear between two of them."""
    place = (len(ordered) - 1) * share
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Iterable[float]) -> Spread:
    """Return the values' spread.

    The interval of the median comes from order statistics, so it holds for every distribution.
    """
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return Spread()
    rank = _median_rank(n)
    low, high = (ordered[rank], ordered[n - 1 - rank]) if rank is not None else (None, None)
    return Spread(n, quantile(ordered, 0.5), quantile(ordered, 0.9), math.fsum(ordered) / n, low, high)


def _median_rank(n: int) -> int | None:
    """Return the index from either end between which the median lies with 95 % confidence; None if no two values do."""
    if n > _FEW:
        return max(0, math.floor((n - 1 - _Z95 * math.sqrt(n)) / 2))
    below, rank = 0.0, -1
    while (below := below + math.comb(n, rank + 1) / 2**n) <= 0.025:
        rank += 1
    return rank if rank >= 0 else None
