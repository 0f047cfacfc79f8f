import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.cluster.standby_size import standby_size


@pytest.mark.parametrize(("machines", "size"), [(128, 2), (256, 2), (512, 3), (1024, 4)])
def test_published_sizes(machines: int, size: int) -> None:
    """The table of ByteRobust, with the daily failure rate that it implies."""
    assert standby_size(machines, 1.2e-3, 0.99) == size


def exact(machines: int, rate: float, quantile: float) -> int:
    """By the definition, in whole binomials."""
    total = 0.0
    for k in range(machines + 1):
        total += math.comb(machines, k) * rate**k * (1 - rate) ** (machines - k)
        if total >= quantile:
            return k
    return machines


@given(st.integers(0, 200), st.floats(1e-6, 0.999), st.floats(0.01, 0.9999))
def test_against_the_definition(machines: int, rate: float, quantile: float) -> None:
    """The smallest k of the definition; where the two sums meet the quantile within rounding, one more or less."""
    size, direct = standby_size(machines, rate, quantile), exact(machines, rate, quantile)
    if size != direct:
        assert abs(size - direct) == 1
        edge = sum(
            math.comb(machines, k) * rate**k * (1 - rate) ** (machines - k) for k in range(min(size, direct) + 1)
        )
        assert edge == pytest.approx(quantile, abs=1e-12)


@given(st.integers(0, 1_000_000), st.floats(0, 1), st.floats(0.001, 0.999999))
def test_never_more_than_the_machines(machines: int, rate: float, quantile: float) -> None:
    """A pool is never larger than what it stands by for, and more trust never makes it smaller."""
    size = standby_size(machines, rate, quantile)
    assert 0 <= size <= machines
    assert standby_size(machines, rate, min(quantile + 1e-4, 0.9999999)) >= size


def test_a_million_machines() -> None:
    """Large numbers: the normal approximation agrees within a fraction of a per mille."""
    mean, deviation = 1e6 * 0.5, math.sqrt(1e6 * 0.25)
    assert standby_size(1_000_000, 0.5, 0.99) == pytest.approx(mean + 2.3263 * deviation, abs=2)
    assert standby_size(1_000_000, 1e-9) == 0


def test_edges() -> None:
    """Nothing to fail, nothing that fails, everything fails."""
    assert standby_size(0, 0.5) == 0
    assert standby_size(100, 0.0) == 0
    assert standby_size(100, 1.0) == 100


@pytest.mark.parametrize("arguments", [(-1, 0.1, 0.9), (10, -0.1, 0.9), (10, 1.1, 0.9), (10, 0.1, 0.0), (10, 0.1, 1.0)])
def test_out_of_range(arguments: tuple[int, float, float]) -> None:
    """Each wrong argument is named."""
    with pytest.raises(ValueError, match=r"machines|rate|quantile"):
        standby_size(*arguments)
