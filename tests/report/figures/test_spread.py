"""Medians, their intervals, and classes of sizes."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.report.figures.size_classes import SizeClass, size_class
from slurm_robust.report.figures.spread import Spread, spread


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60))
def test_a_spread_is_ordered(values: list[float]) -> None:
    """The median is that of the standard library, and lies within its interval."""
    found = spread(values)
    assert found.median == pytest.approx(statistics.median(values))
    assert found.median is not None
    assert found.p90 is not None
    assert found.median <= found.p90 <= max(values)
    assert (found.low is None) == (len(values) < 6)
    if found.low is not None and found.high is not None:
        assert min(values) <= found.low <= found.median <= found.high <= max(values)


def test_nothing_has_no_median() -> None:
    """Not 0."""
    assert spread(()) == Spread(0, None, None, None, None, None)


@pytest.mark.parametrize("n", [6, 15, 1500])
def test_the_interval_holds_in_95_of_100(n: int) -> None:
    """The median of a skewed distribution, drawn again and again."""
    rng, held = random.Random(n), 0
    for _ in range(400):
        found = spread(rng.expovariate(1.0) for _ in range(n))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.6931 <= found.high
    assert held >= 370


@pytest.mark.parametrize(
    ("count", "label"),
    [(0, "0"), (-1, "0"), (1, "1"), (2, "2"), (3, "3–4"), (5, "5–8"), (512, "257–512"), (513, "513–1024")],
)
def test_classes_are_powers_of_two(count: int, label: str) -> None:
    """Each count is in one class, and the class says so."""
    assert size_class(count).label == label


@given(st.integers(1, 10**6))
def test_a_class_holds_its_counts(count: int) -> None:
    """Classes touch, and do not overlap."""
    found = size_class(count)
    assert found.low <= count <= found.high
    assert size_class(found.high + 1).low == found.high + 1
    assert size_class(found.low) == found == SizeClass(found.low, found.high)
