"""Which losses of a running training are bad for good."""

from __future__ import annotations

import math

import pytest

from slurm_robust.policy.job.live_loss import STEPS, LossTrend

NAN, INF = math.nan, math.inf


def trend_of(*losses: float) -> LossTrend:
    """One a step."""
    trend = LossTrend()
    for step, loss in enumerate(losses):
        trend.take(step, loss)
    return trend


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_loss_that_stays_not_finite_is_lost_at_the_tenth_report(bad: float) -> None:
    """Not before."""
    assert trend_of(2.0, *[bad] * (STEPS - 1)).lost == ""
    found = trend_of(2.0, *[bad] * STEPS)
    assert found.lost == f"loss {bad} at step 10, and not finite in each of the last 10 reports"
    assert found.bad_since == 1


def test_single_overflows_are_normal() -> None:
    """Loss scaling skips such a step: however many there are, good ones lie between."""
    assert trend_of(*[INF, 2.0] * 100).lost == ""
    assert trend_of(*[NAN] * (STEPS - 1), 2.0, *[NAN] * (STEPS - 1)).lost == ""


def test_one_report_seen_often_is_one_report() -> None:
    """The supervisor sees a slow step's report many times."""
    trend = LossTrend()
    for _ in range(5 * STEPS):
        trend.take(7, NAN)
    assert trend.lost == ""


def test_a_spike_is_five_times_the_usual_loss_for_ten_reports() -> None:
    """Infinite values in between make it no spike, and a spike makes nothing lost."""
    usual = [2.0] * 60
    assert trend_of(*usual, *[10.5] * (STEPS - 1)).spike == ""
    found = trend_of(*usual, *[10.5] * STEPS)
    assert (found.lost, found.spike) == ("", "loss 10.5 at step 69, 5.2 times the usual 2, since step 60")
    assert trend_of(*usual, *[9.9] * STEPS).spike == "", "under five times"
    assert trend_of(*usual, *[10.5] * (STEPS - 1), 2.0, 10.5).spike == "", "it has passed"


def test_without_a_usual_loss_there_is_no_spike() -> None:
    """A training that has just begun, and losses below zero."""
    assert trend_of(*[2.0] * 35, *[100.0] * (STEPS + 4)).spike == ""
    assert trend_of(*[-2.0] * 60, *[100.0] * STEPS).spike == ""
