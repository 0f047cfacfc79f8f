"""Computes how many standby nodes are enough for a day's failures, with a probability that the site chooses."""

from __future__ import annotations

from collections.abc import Iterable

_NEGLIGIBLE = 1e-25
"""Weights below this share of the largest are left out: far below the finest quantile that is accepted."""
MAX_QUANTILE = 1 - 1e-12
MAX_MACHINES = 10_000_000


def standby_size(machines: int, daily_failure_rate: float, quantile: float = 0.99) -> int:
    """Return the smallest k such that at most k of the machines fail in a day with at least this probability.

    Failures are taken as independent, so their number is binomial; a rack or a switch that fails as a whole is not
    covered and belongs to the site's own reserve. The weights are built outward from the most likely number, and the
    upper tail is summed from its far end, so that large numbers and quantiles near 1 keep their precision.

    Args:
        machines: Nodes of one hardware class that train, 0 to ten million.
        daily_failure_rate: Probability that one node fails within a day, 0 to 1.
        quantile: 0 < quantile < 1.

    Raises:
        ValueError: an argument out of its range.
    """
    if not 0 <= machines <= MAX_MACHINES:
        raise ValueError(f"machines: {machines} is not between 0 and {MAX_MACHINES}")
    if not 0 <= daily_failure_rate <= 1:
        raise ValueError(f"daily failure rate: {daily_failure_rate} is not between 0 and 1")
    if not 0 < quantile <= MAX_QUANTILE:
        raise ValueError(f"quantile: {quantile} is not above 0 and below 1 (at most {MAX_QUANTILE})")
    if daily_failure_rate == 0 or machines == 0:
        return 0
    if daily_failure_rate == 1:
        return machines
    lowest, weights = _weights(machines, daily_failure_rate)
    allowed = (1 - quantile) * sum(weights)
    tail = 0.0
    for index in range(len(weights) - 1, -1, -1):
        tail += weights[index]
        if tail > allowed:
            return lowest + index
    return lowest


def _weights(machines: int, rate: float) -> tuple[int, list[float]]:
    """Return the weight of each number of failures, relative to the most likely number, and the first number."""
    mode = min(int((machines + 1) * rate), machines)
    odds = rate / (1 - rate)
    above = _products((machines - failures) / (failures + 1) * odds for failures in range(mode, machines))
    below = _products(failures / ((machines - failures + 1) * odds) for failures in range(mode, 0, -1))
    return mode - len(below), [*reversed(below), 1.0, *above]


def _products(factors: Iterable[float]) -> list[float]:
    """Return the products of the first factors, up to one that is negligible."""
    weights = [1.0]
    for factor in factors:
        weights.append(weights[-1] * factor)
        if weights[-1] <= _NEGLIGIBLE:
            break
    return weights[1:]
