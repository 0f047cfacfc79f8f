"""Statistics that a few wild values do not move. NaN is a gap everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import NormalDist
from typing import TypeVar

NAN = math.nan
T = TypeVar("T")
_MAD_TO_SD = 1.4826


def known(values: Iterable[float]) -> list[float]:
    """What is there, in order. One sum tells whether there is any gap: this is the inner loop of all of it."""
    found = list(values)
    if not math.isfinite(sum(found)):
        found = [v for v in found if math.isfinite(v)]
    found.sort()
    return found


def median(values: Iterable[float]) -> float:
    """The median of what is there; NaN of nothing."""
    found = known(values)
    if not found:
        return NAN
    half = len(found) // 2
    return found[half] if len(found) % 2 else (found[half - 1] + found[half]) / 2


def sample(values: Sequence[T], limit: int) -> Sequence[T]:
    """At most so many of them, evenly spread: enough for a median or a spread."""
    return values[:: -(-len(values) // limit)] if len(values) > limit else values


def spread(values: Sequence[float], around: float = 0.0) -> float:
    """Standard deviation of normal values with this median absolute deviation; NaN of nothing."""
    return _MAD_TO_SD * median([abs(v - around) for v in values])


def excess(values: Sequence[float]) -> list[float]:
    """How much each is above the median of the *others*, as a share of it; NaN for gaps and where there is no other."""
    if len(values) == 2:
        one, two = values
        return [one / two - 1, two / one - 1] if one > 0 and two > 0 else [NAN, NAN]
    found = known(values)
    n = len(found)
    if n < 2 or not found[0] > 0:
        positive = [v if v > 0 else NAN for v in values]
        return (
            excess(positive) if found and found[-1] > 0 and n > sum(v <= 0 for v in found) > 0 else [NAN] * len(values)
        )
    # The median without one of them depends only on which side of the middle that one is.
    k = n // 2
    if n % 2:
        middle = found[k]
        below, at, above = (middle + found[k + 1]) / 2, (found[k - 1] + found[k + 1]) / 2, (found[k - 1] + middle) / 2
    else:
        middle = found[k - 1]
        below, at, above = found[k], found[k], middle
    return [v / (below if v < middle else above if v > middle else at) - 1.0 for v in values]


def z_limit(candidates: int, chance: float) -> float:
    """Standard deviations that the largest of so many normal values exceeds with this chance only."""
    return NormalDist().inv_cdf(1 - chance / max(1, candidates))


def binomial_tail(hits: int, n: int, p: float) -> float:
    """Chance of so many hits, or more, in n tries."""
    if hits <= 0:
        return 1.0
    p = min(max(p, 1e-12), 1 - 1e-12)
    log = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
        for k in range(hits, n + 1)
    ]
    return min(1.0, sum(map(math.exp, log)))


def change_at(values: Sequence[float]) -> int:
    """Where the level of a row changes most: the index from which the later one holds; 0 where it has one level.

    The split that takes most out of the squared deviations, of values whose largest outliers are cut; it counts where
    the two levels are apart by more than the noise around them explains.
    """
    there = [(at, v) for at, v in enumerate(values) if math.isfinite(v)]
    n = len(there)
    if n < 8:
        return 0
    middle = median(v for _, v in there)
    cut = 5 * max(spread([v for _, v in there], middle), 1e-9)
    row = [min(max(v, middle - cut), middle + cut) for _, v in there]
    sums = list(accumulate(row))
    best, where = 0.0, 0
    for k in range(3, n - 2):
        apart = sums[k - 1] / k - (sums[-1] - sums[k - 1]) / (n - k)
        gain = apart * apart * k * (n - k) / n
        if gain > best:
            best, where = gain, k
    if not where:
        return 0
    before, after = sums[where - 1] / where, (sums[-1] - sums[where - 1]) / (n - where)
    rest = [v - before for v in row[:where]] + [v - after for v in row[where:]]
    noise = max(spread(rest, median(rest)), 1e-9)
    return there[where][0] if best > 25 * noise * noise else 0
