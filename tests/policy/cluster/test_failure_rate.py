"""Exact Poisson intervals: against published values, and as properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.cluster.failure_rate import (
    daily_probability,
    failure_rate,
    gamma_p,
    gamma_quantile,
    poisson_interval,
)


def poisson_tail(count: int, mean: float) -> float:
    """The chance of `count` events or more where `mean` are expected."""
    if count <= 0:
        return 1.0
    return gamma_p(count, mean) if mean > 0 else 0.0


PUBLISHED = {
    0: (0.0, 3.6889),
    1: (0.0253, 5.5716),
    2: (0.2422, 7.2247),
    3: (0.6187, 8.7673),
    5: (1.6235, 11.6683),
    10: (4.7954, 18.3904),
    20: (12.2165, 30.8884),
    50: (37.1110, 65.9190),
    100: (81.3640, 121.6270),
}
"""95 % limits of a Poisson mean, as tables have them (Garwood 1936; Ulm 1990, Am J Epidemiol 131:373)."""


@pytest.mark.parametrize("count", PUBLISHED)
def test_the_interval_is_that_of_the_tables(count: int) -> None:
    """To the digits that are printed."""
    low, high = PUBLISHED[count]
    assert poisson_interval(count) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


@pytest.mark.parametrize(
    ("freedom", "probability", "quantile"),
    [(1, 0.95, 3.841459), (2, 0.95, 5.991465), (10, 0.05, 3.940299), (10, 0.99, 23.209251), (100, 0.5, 99.334129)],
)
def test_gamma_quantiles_are_those_of_chi_squared(freedom: int, probability: float, quantile: float) -> None:
    """χ² with n degrees of freedom is twice a gamma variable of shape n/2: the tables' values."""
    assert 2 * gamma_quantile(freedom / 2, probability) == pytest.approx(quantile, abs=2e-6)


@given(st.integers(0, 5000), st.floats(0.5, 0.999))
def test_each_end_leaves_half_of_the_error(count: int, confidence: float) -> None:
    """The definition: so many events or more are just so unlikely at the lower end, so many or fewer at the upper."""
    low, high = poisson_interval(count, confidence)
    assert low <= count <= high
    error = (1 - confidence) / 2
    if count:
        assert poisson_tail(count, low) == pytest.approx(error, rel=1e-6)
    assert 1 - poisson_tail(count + 1, high) == pytest.approx(error, rel=1e-6)


@given(st.integers(1, 300), st.floats(0.001, 400))
def test_the_tail_is_the_sum_of_its_terms(count: int, mean: float) -> None:
    """P(N ≥ n) by adding what is below it."""
    below = math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count))
    assert poisson_tail(count, mean) == pytest.approx(1 - below, abs=1e-11)


@given(st.floats(0.01, 1e6), st.floats(0, 1e7))
def test_gamma_p_is_a_probability_that_grows(shape: float, x: float) -> None:
    """Between 0 and 1, and never less for more."""
    assert 0 <= gamma_p(shape, x) <= gamma_p(shape, x * 1.01 + 1e-9) + 1e-9 <= 1 + 1e-8


def test_nothing_gives_no_interval() -> None:
    """No exposure: None everywhere. No failure: a bound on one side, and no mean time. Never 0 for unknown."""
    for exposure in (0.0, -1.0, math.nan, math.inf):
        nothing = failure_rate(0, exposure)
        assert (nothing.rate, nothing.low, nothing.high, nothing.mean_time) == (None,) * 4
        assert (nothing.mean_time_low, nothing.mean_time_high) == (None, None)
    quiet = failure_rate(0, 1000.0)
    assert (quiet.rate, quiet.low) == (0.0, 0.0)
    assert quiet.high == pytest.approx(0.0036889, abs=1e-6)
    assert (quiet.mean_time, quiet.mean_time_high) == (None, None)
    assert quiet.mean_time_low == pytest.approx(271.08, abs=0.1)


def test_bad_arguments_are_refused() -> None:
    """With the argument's name."""
    for call in (lambda: poisson_interval(-1), lambda: gamma_p(0, 1), lambda: gamma_quantile(1, 1.0)):
        with pytest.raises(ValueError, match=r"count|shape|probability"):
            call()


def test_a_rate_is_not_a_probability() -> None:
    """At one failure a day a node survives a day with 1/e."""
    assert daily_probability(1.0) == pytest.approx(1 - 1 / math.e)
    assert daily_probability(0.0) == 0.0
    assert daily_probability(1e-12) == pytest.approx(1e-12)
