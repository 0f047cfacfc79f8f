"""A checkpoint is healthy when enough good steps followed it; the spike that followed one condemns it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.health.loss_health import (
    HEALTHY,
    UNHEALTHY,
    UNKNOWN,
    HealthLimits,
    Point,
    Skip,
    Trend,
    judge,
    observe,
    skip,
)

LIMITS = HealthLimits(window=20, settle_steps=10)


def trained(
    *losses: float,
    norms: Iterable[float] | None = None,
    at: int = 1,
    trend: Trend | None = None,
    began_s: float = 1000.0,
) -> Trend:
    """A training that told these losses from step `at` on."""
    trend = trend or Trend()
    told = list(norms) if norms is not None else [None] * len(losses)
    for n, (loss, norm) in enumerate(zip(losses, told, strict=True)):
        observe(trend, Point(at + n, loss, norm), LIMITS, now_s=began_s + at + n)
    return trend


def state(trend: Trend, step: int) -> str:
    """Of a checkpoint that was written when its step was done."""
    return judge(trend, step, 1000.5 + step, LIMITS)[0]


def test_a_calm_training() -> None:
    """Healthy once ten good steps followed, unknown until then."""
    trend = trained(*[2.0 - n / 100 for n in range(40)])
    assert [state(trend, step) for step in (1, 30, 31, 40)] == [HEALTHY, HEALTHY, UNKNOWN, UNKNOWN]
    assert skip(trend, 0, LIMITS) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, 20.0])
def test_a_spike(bad: float) -> None:
    """Those just before it and in it are unhealthy, those well before stay healthy, those well after it are again."""
    trend = trained(*[2.0] * 30, bad, bad, *[2.0] * 40)
    assert [state(trend, step) for step in (20, 21, 30, 31, 42, 43, 62, 63)] == [
        HEALTHY, UNHEALTHY, UNHEALTHY, UNHEALTHY, UNHEALTHY, HEALTHY, HEALTHY, UNKNOWN,
    ]  # fmt: skip
    assert skip(trend, 20, LIMITS) == Skip(30, 32)
    assert skip(trend, 31, LIMITS) == Skip(32, 32)
    assert skip(trend, 32, LIMITS) is None


def test_the_words_of_a_spike() -> None:
    """Which figure, at which step, how far out."""
    trend = trained(*[2.0] * 30, 20.0)
    assert judge(trend, 30, 2000.0, LIMITS)[1] == "loss 20 at step 31, 10.0 times the usual 2"


def test_loss_scaling_may_overflow() -> None:
    """One or two steps whose gradient norm is infinite are the scaler's search; three in a row are not."""
    assert trained(*[2.0] * 30, norms=[1.0] * 20 + [math.inf] * 2 + [1.0] * 8).spells == []
    (spell,) = trained(*[2.0] * 30, norms=[1.0] * 20 + [math.inf] * 3 + [1.0] * 7).spells
    assert spell.first_step == 23


def test_the_first_steps_are_high() -> None:
    """Nothing is usual yet: only what is not finite counts."""
    assert trained(1000.0, 100.0, 10.0, 2.0, 2.0).spells == []
    assert trained(1000.0, math.nan).spells != []


def test_going_back_after_a_spike() -> None:
    """What was written on the way that was given up is not judged by what came instead; the hint stays."""
    trend = trained(*[2.0] * 30, math.nan)
    trained(*[2.0] * 40, at=21, trend=trend, began_s=5000.0)  # went back to 20, and around the batches
    assert trend.spells == []
    assert judge(trend, 30, 1030.5, LIMITS) == (UNKNOWN, "training was rolled back to before it")
    assert judge(trend, 30, trend.turns[-1].at_s + 10, LIMITS)[0] == HEALTHY
    assert state(trend, 15) == HEALTHY
    assert skip(trend, 20, LIMITS) == Skip(30, 31)
    assert skip(trend, 40, LIMITS) is None


def test_a_training_that_begins_anew_is_not_measured_by_its_former_life() -> None:
    """Its folder was moved away, say: the first losses are high again, and its checkpoints are healthy."""
    first = [30.0 / (n + 1) for n in range(60)]
    trend = trained(*first, trend=trained(*first), began_s=5000.0)
    assert trend.spells == []
    assert judge(trend, 20, 5500.0, LIMITS)[0] == HEALTHY
    assert trained(40.0, at=60, trend=trend, began_s=6000.0).spells, "later, a spike is one again"


def test_a_crash_is_no_spike() -> None:
    """Going back after a crash leaves what was known of the steps before."""
    trend = trained(*[2.0] * 25)
    trained(*[2.0] * 15, at=21, trend=trend)
    assert [state(trend, step) for step in (10, 20)] == [HEALTHY, HEALTHY]


def test_steps_that_nobody_told() -> None:
    """A log line every tenth step is enough; before a longer gap nothing is known."""
    trend = Trend()
    for step in range(0, 100, 10):
        observe(trend, Point(step, 2.0), LIMITS, now_s=1000.0)
    assert state(trend, 40) == HEALTHY
    observe(trend, Point(200, 2.0), LIMITS, now_s=2000.0)
    assert state(trend, 40) == UNKNOWN
    assert judge(Trend(), 5, 0.0, LIMITS)[0] == UNKNOWN


VALUES = st.one_of(st.floats(), st.floats(0.5, 3.0), st.none())


@given(st.lists(st.tuples(st.integers(0, 60), VALUES, VALUES), max_size=120), st.integers(0, 70))
def test_whatever_is_told(points: list[tuple[int, float | None, float | None]], step: int) -> None:
    """No step order and no number ends in an error; what is kept stays bounded; healthy had its good steps."""
    trend = Trend()
    for n, (at, loss, norm) in enumerate(points):
        observe(trend, Point(at, loss, norm), LIMITS, now_s=float(n))
    told, why = judge(trend, step, float(len(points)), LIMITS)
    assert told in {HEALTHY, UNHEALTHY, UNKNOWN}
    assert why
    assert max(len(trend.losses), len(trend.grad_norms)) <= LIMITS.window
    if told == HEALTHY:
        assert trend.seen_step >= step + LIMITS.settle_steps
        assert not any(step < spell.first_step <= step + LIMITS.settle_steps for spell in trend.spells)
    hint = skip(trend, step, LIMITS)
    assert hint is None or step < hint.first_step <= hint.last_step
