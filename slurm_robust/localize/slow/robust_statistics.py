"""Computes statistics that a few wild values do not move, over whole tables at once. NaN is a gap everywhere."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
"""Numbers of columns or rows of a table."""
_MAD_TO_SD = 1.4826


def median(values: Floats, axis: int = -1) -> Floats:
    """Return the median of the known values along an axis; NaN if there is none."""
    if not values.shape[axis]:
        return np.full(np.delete(values.shape, axis), np.nan)
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, -1)  # gaps come last
    count = np.isfinite(ordered).sum(axis=-1)[..., None]
    low, high = (np.take_along_axis(ordered, at, -1)[..., 0] for at in (np.maximum(count - 1, 0) // 2, count // 2))
    middle: Floats = (low + high) / 2
    return middle


def middle(values: Floats) -> float:
    """Return the median of one row as a plain number."""
    return float(median(values))


def known(values: Floats) -> Floats:
    """Return the values of a row without its gaps."""
    return values[np.isfinite(values)]


def stride(count: int, limit: int) -> int:
    """Return the stride that takes at most `limit` of `count` values: enough for a median or a spread."""
    return max(1, -(-count // limit))


def spread(values: Floats, around: Floats | float = 0.0) -> Floats:
    """Return the standard deviation of normal values with this median absolute deviation, along the last axis."""
    return _MAD_TO_SD * median(np.abs(values - around))


def excess(values: Floats) -> Floats:
    """Return how much each value exceeds the median of the *others* of its row, as a share of that median.

    The result is NaN for gaps, for durations of zero, and if the row has no other value.
    """
    ordered = np.sort(np.where(values > 0, values, np.nan), axis=-1)
    count = np.isfinite(ordered).sum(axis=-1, keepdims=True)
    half, odd = count // 2, count % 2 == 1
    before, center, after = (
        np.take_along_axis(ordered, np.clip(at, 0, values.shape[-1] - 1), -1) for at in (half - 1, half, half + 1)
    )
    # The median without one value depends only on which side of the middle that value is.
    turn = np.where(odd, center, before)
    of_lower = np.where(odd, (center + after) / 2, center)
    of_upper = np.where(odd, (before + center) / 2, before)
    of_middle = np.where(odd, (before + after) / 2, center)
    others = np.where(values < turn, of_lower, np.where(values > turn, of_upper, of_middle))
    shares: Floats = np.where((count > 1) & (values > 0), values / others, np.nan) - 1.0
    return shares


def median_around(values: Floats, distance: int) -> Floats:
    """Return the median of the neighbours of each value of a row, up to `distance` on both sides, without itself."""
    windows = sliding_window_view(np.pad(values, distance, constant_values=np.nan), 2 * distance + 1)
    return median(np.delete(windows, distance, axis=1))


def z_limit(candidates: int, chance: float) -> float:
    """Return how many standard deviations the largest of so many normal values exceeds with this chance only."""
    return NormalDist().inv_cdf(1 - chance / max(1, candidates))


def binomial_tail(hits: int, n: int, p: float) -> float:
    """Return the chance of so many hits, or more, in n tries."""
    if hits <= 0:
        return 1.0
    p = min(max(p, 1e-12), 1 - 1e-12)
    log = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
        for k in range(hits, n + 1)
    ]
    return min(1.0, sum(map(math.exp, log)))


def change_at(values: Floats) -> int:
    """Return the index at which the level of a row changes most and the later level begins; 0 if it has one level.

    The split is the one that reduces the squared deviations most, after the largest outliers are cut. It counts if the
    two levels differ by more than the noise around them explains.
    """
    there = np.flatnonzero(np.isfinite(values))
    n = len(there)
    if n < 8:
        return 0
    level = middle(values[there])
    cut = 5 * max(float(spread(values[there], level)), 1e-9)
    row = np.clip(values[there], level - cut, level + cut)
    sums, k = np.cumsum(row), np.arange(3, n - 2)
    before, after = sums[k - 1] / k, (sums[-1] - sums[k - 1]) / (n - k)
    gain = (before - after) ** 2 * k * (n - k) / n
    best = int(np.argmax(gain))
    split = int(k[best])
    rest = np.concatenate((row[:split] - before[best], row[split:] - after[best]))
    noise = max(float(spread(rest, middle(rest))), 1e-9)
    return int(there[split]) if gain[best] > 25 * noise * noise else 0
