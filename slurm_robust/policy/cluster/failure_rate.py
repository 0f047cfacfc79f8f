"""Computes how often something fails, and how sure that is: rates of rare events with exact intervals. Pure.

Failures are counted over an exposure (node-days, hours). Their number is taken as Poisson, which is exact for failures
that do not cause one another, and close to a binomial if few of the nodes fail in a day.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CONFIDENCE = 0.95
_STEPS = 200
_TINY = 1e-300
_CLOSE = 1e-15


def gamma_p(shape: float, x: float) -> float:
    """Return the regularised lower incomplete gamma function P(shape, x): the chance of a gamma variable of at most x.

    A power series below `shape + 1`, a continued fraction (modified Lentz) above it, as in Abramowitz and Stegun 6.5.29
    and 6.5.31. Both end at a relative error of 1e-15.
    """
    if shape <= 0:
        raise ValueError(f"shape: {shape} is not above 0")
    if x <= 0:
        return 0.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1.0 / shape
        number = shape
        while term > total * _CLOSE:
            number += 1
            term *= x / number
            total += term
        return min(1.0, total * front)
    return max(0.0, 1.0 - front * _upper_fraction(shape, x))


def _upper_fraction(shape: float, x: float) -> float:
    b = x + 1 - shape
    c, d = 1 / _TINY, 1 / b
    fraction, number, change = d, 0, 0.0
    while abs(change - 1) > _CLOSE and number < 100_000:
        number += 1
        a = -number * (number - shape)
        b += 2
        d = a * d + b
        c = b + a / c
        d = 1 / (d if abs(d) > _TINY else _TINY)
        c = c if abs(c) > _TINY else _TINY
        change = c * d
        fraction *= change
    return fraction


def gamma_quantile(shape: float, probability: float) -> float:
    """Return the x with P(shape, x) = probability, by bisection."""
    if not 0 < probability < 1:
        raise ValueError(f"probability: {probability} is not between 0 and 1")
    low, high = 0.0, shape + 1.0
    while gamma_p(shape, high) < probability:
        low, high = high, high * 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if gamma_p(shape, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def poisson_interval(count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact (Garwood) interval of a Poisson mean, of which `count` events were seen: never too narrow.

    Half of the error lies on each side of the interval. Without any event the lower end is 0.
    """
    if count < 0:
        raise ValueError(f"count: {count} is below 0")
    error = (1 - confidence) / 2
    low = gamma_quantile(count, error) if count else 0.0
    return low, gamma_quantile(count + 1, 1 - error)


@dataclass(frozen=True)
class FailureRate:
    """The number of failures over an exposure, and the rate with its interval.

    Attributes:
        exposure: The node-days, hours or other units over which the failures are counted; all rates are per unit.
        low: The lower end of the interval; None without exposure.
        high: The upper end; None without exposure.
    """

    failures: int
    exposure: float
    confidence: float = CONFIDENCE
    low: float | None = None
    high: float | None = None

    @property
    def rate(self) -> float | None:
        """Failures in one unit of the exposure; None without exposure."""
        return self.failures / self.exposure if self.exposure > 0 else None

    @property
    def mean_time(self) -> float | None:
        """Exposure between two failures; None if no failure was seen (then only `mean_time_low` is known)."""
        return self.exposure / self.failures if self.failures and self.exposure > 0 else None

    @property
    def mean_time_low(self) -> float | None:
        """The time between two failures is at least this, with that confidence."""
        return 1 / self.high if self.high else None

    @property
    def mean_time_high(self) -> float | None:
        """The upper end of the interval of `mean_time`; None if no failure was seen: the time may be of any length."""
        return 1 / self.low if self.low else None


def failure_rate(failures: int, exposure: float, confidence: float = CONFIDENCE) -> FailureRate:
    """Return the rate with its interval; without exposure, a `FailureRate` that has neither."""
    if not (math.isfinite(exposure) and exposure > 0):
        return FailureRate(failures, 0.0, confidence)
    low, high = poisson_interval(failures, confidence)
    return FailureRate(failures, exposure, confidence, low / exposure, high / exposure)


def daily_probability(rate_per_day: float) -> float:
    """Return the chance that a node fails within a day, at this rate: 1 − e^(−rate)."""
    return -math.expm1(-max(0.0, rate_per_day))
