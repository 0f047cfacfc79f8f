"""Nothing, nearly nothing, and what cannot be: sentences and None, never 0 for unknown, never an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_rows import DAY_S, HOUR_S, NOW_S, attempt_row, drain_row, facts_of, incident_row, job_row
from simulated_month import simulated_month

from slurm_robust.core.spent_time import Spent
from slurm_robust.daemon.store.attempt_ledger import ClusterSize, PoolSize
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.all_figures import figures_of
from slurm_robust.report.figures.ettr import ettr_series
from slurm_robust.report.figures.trainings import trainings_of


def test_no_facts_at_all() -> None:
    """Every figure is there, and says that it knows nothing."""
    for facts in (facts_of(), Facts(5.0, 5.0, 5.0), Facts(5.0, 1.0, 0.0)):
        figures = figures_of(facts)
        assert (figures.time.ettr, figures.time.shares, figures.time.at_most) == (None, None, None)
        assert figures.series == figures.restarts == figures.nodes == figures.expected == ()
        assert figures.costs.total_hours is None
        assert figures.goodput.productive is figures.goodput.capacity is figures.goodput.of_capacity is None
        total = figures.reliability.total
        assert total.by_hours.mean_time is total.by_hours.mean_time_low is total.back_s.median is None
        assert (figures.standby.hit_rate, figures.standby.another) == (None, None)
        assert (figures.false_alarms.false_share, figures.false_alarms.reverted_share) == (None, None)
        assert "there is no ETTR" in figures.sentences[0]


def test_a_month_without_failures() -> None:
    """No MTTF, but a bound; the formula says what checkpoints alone leave; nothing is divided by nothing."""
    quiet = {"failures_per_day": 0.0, "program_failures_per_day": 0.0, "false_drains_per_day": 0.0}
    facts, _ = simulated_month(1, nodes=8, jobs=3, false_alarms_per_day=0.0, **quiet)
    figures = figures_of(facts)
    total = figures.reliability.total
    assert total.by_hours.mean_time is None
    assert total.by_hours.mean_time_low == pytest.approx(total.by_hours.exposure / 3.688879, rel=1e-6)
    assert total.by_hours.mean_time_high is None
    assert figures.costs.by_category == ()
    assert figures.costs.total_hours == 0.0
    for row in figures.expected:
        assert row.prediction.expected == pytest.approx(row.alike)
        assert row.prediction.best_interval_s is None
        assert row.prediction.why == "No failure was seen: this is what checkpoints alone leave."
    assert "No incident happened" in figures.sentences[0]


def test_one_node_that_nobody_watched() -> None:
    """No ETTR, though there was time: not 0."""
    silent = attempt_row(DAY_S, None, nodes=1, gpus=0, first_step_at_s=None, first_new_step_at_s=None, last_step=-1)
    silent = replace(silent, times=replace(silent.times, last_step_at_s=None))
    training = trainings_of(facts_of(attempts=(silent,)))
    assert len(training) == 1
    figures = figures_of(facts_of(attempts=(silent,)))
    assert figures.time.unit == "node"
    assert figures.expected[0].prediction.expected is None or figures.expected[0].measured is not None


def test_one_training_without_gpus_does_not_change_the_unit_of_all() -> None:
    """It weighs nothing among GPUs; where such trainings had most of the time, nodes count."""
    half_s = 1.5 * DAY_S
    large = attempt_row(DAY_S, 2 * DAY_S, nodes=4, gpus=32, first_step_at_s=half_s, first_new_step_at_s=half_s)
    small = attempt_row(DAY_S, half_s, nodes=1, gpus=0, user="bob")
    figures = figures_of(facts_of(attempts=(large, small)))
    assert (figures.time.unit, figures.time.ettr) == ("gpu", pytest.approx(0.5))
    many = tuple(attempt_row(DAY_S, 2 * DAY_S, nodes=4, gpus=0, user=f"u{n}") for n in range(2))
    assert figures_of(facts_of(attempts=(large, *many))).time.unit == "node"


def test_two_users_may_have_the_same_lineage() -> None:
    """A lineage is a word of its user's own choice: they are two trainings."""
    rows = (attempt_row(1.0, DAY_S), attempt_row(1.0, DAY_S, user="bob"))
    assert len(trainings_of(facts_of(attempts=rows))) == 2


def test_only_the_window_counts() -> None:
    """A training that began before it, and an incident after it."""
    facts = replace(facts_of(attempts=(attempt_row(HOUR_S, None),)), from_s=DAY_S, to_s=2 * DAY_S)
    facts = replace(facts, incidents=(incident_row(5 * DAY_S),))
    figures = figures_of(facts)
    assert figures.time.total_s == pytest.approx(DAY_S * 32)
    assert figures.reliability.total.by_hours.exposure == pytest.approx(24.0)
    assert figures.reliability.total.by_hours.failures == 0


def test_what_does_not_count_as_a_failure() -> None:
    """False alarms, and an incident that a later one has superseded; one that was only observed counts."""
    outcomes = ("went_on", "came_back", "superseded", "resumed", "refused", "")
    rows = tuple(incident_row(DAY_S * n, n, outcome=outcome) for n, outcome in enumerate(outcomes, 1))
    figures = figures_of(facts_of(attempts=(attempt_row(1.0, None),), incidents=rows))
    assert figures.reliability.total.by_hours.failures == 3
    assert figures.false_alarms.false_alarms == 2
    assert figures.reliability.rows[0].by_hours.failures == 3


def test_a_failure_of_unknown_size_counts_in_the_sum_alone() -> None:
    """It has no row of its own."""
    rows = (incident_row(DAY_S, nodes=0, attempt="unknown"),)
    found = figures_of(facts_of(attempts=(attempt_row(1.0, None),), incidents=rows)).reliability
    assert (found.failures_without_size, found.total.by_hours.failures) == (1, 1)
    assert [row.by_hours.failures for row in found.rows] == [0]


def test_stages_that_end_before_they_begin_are_counted_and_left_out() -> None:
    """A clock that jumped must not make a median."""
    odd = incident_row(DAY_S, times={"fault": 100.0, "suspected": 90.0, "decided": 95.0, "running": 99.0})
    (row,) = figures_of(facts_of(incidents=(odd,))).restarts
    assert row.odd == 1
    assert "detection" not in row.stages
    assert row.back_s.n == 0
    assert row.placed_s.median == 4.0


def test_a_missing_stamp_makes_the_next_stage_longer() -> None:
    """A program that calls nothing between its start and its first step."""
    (row,) = figures_of(facts_of(incidents=(incident_row(DAY_S),))).restarts
    assert row.stages["first step"].median == 80.0
    assert {"imports", "load", "process groups"}.isdisjoint(row.stages)


def test_another_standby_is_replayed() -> None:
    """Two evictions within the time in which the pool was empty: one more node would have met the second."""
    pools = (
        PoolSize(0.0, "s", "p", 1, ("n9",)),
        PoolSize(DAY_S + 1, "s", "p", 1, ()),
        PoolSize(3 * DAY_S, "s", "p", 1, ("n8",)),
    )
    late = {
        "fault": 2 * DAY_S,
        "decided": 2 * DAY_S + 15,
        "running": 2 * DAY_S + 140,
        "first_new_step": 2 * DAY_S + 220,
    }
    rows = (incident_row(DAY_S), incident_row(2 * DAY_S, 1, standby=(), road="plain_requeue", times=late))
    sizes = (ClusterSize(0.0, "gpu:8", 10, 8),)
    use = figures_of(facts_of(incidents=rows, pools=pools, sizes=sizes)).standby
    assert (use.needed, use.hits, use.hit_rate) == (2, 1, 0.5)
    (pool,) = use.pools
    assert pool.held_hours == pytest.approx((DAY_S + 1 + 27 * DAY_S) / HOUR_S)
    assert pool.held_gpu_hours == pytest.approx(pool.held_hours * 8)
    assert pool.short_hours == pytest.approx((2 * DAY_S - 1) / HOUR_S)
    assert use.another is not None
    assert (use.another.misses, use.another.misses_with, use.another.faster_restarts) == (1, 0, 1)
    assert use.another.saved_hours == pytest.approx((220 - 100) * 32 / HOUR_S)
    assert use.another.held_hours == pytest.approx(NOW_S / HOUR_S)
    assert "would have made 1 restart faster, by 120 s each" in use.another.sentence


def test_another_standby_where_no_restart_had_one() -> None:
    """How much it saves cannot be said."""
    pools = (PoolSize(0.0, "s", "p", 0, ()),)
    use = figures_of(facts_of(incidents=(incident_row(DAY_S, standby=()),), pools=pools)).standby
    assert use.another is not None
    assert use.another.saved_hours is None
    assert "no restart with a standby node has its times" in use.another.sentence


def test_hours_out_of_service_overlap_once() -> None:
    """A drain whose reason was changed is two rows, and one outage."""
    rows = (
        drain_row("n1", DAY_S, ended_at_s=2 * DAY_S),
        drain_row("n1", 1.5 * DAY_S, "srobust: SXID 12028", ended_at_s=3 * DAY_S),
        drain_row("n2", 29 * DAY_S),
    )
    one, two = figures_of(facts_of(drains=rows)).nodes
    assert (one.node, one.out_hours, one.is_out) == ("n1", pytest.approx(48.0), False)
    assert dict(one.xids) == {79: 1, 12028: 1}
    assert (two.out_hours, two.is_out) == (pytest.approx(24.0), True)


def test_goodput_where_the_size_came_later() -> None:
    """The capacity of a window whose begin nobody saw cannot be said."""
    facts = facts_of(sizes=(ClusterSize(DAY_S, "gpu:8", 10, 8),), jobs=(job_row(0.0, HOUR_S),))
    found = figures_of(facts).goodput
    assert (found.capacity, found.utilisation) == (None, None)
    assert found.used == pytest.approx(8.0)


def test_a_series_of_nothing() -> None:
    """No trainings, no window, no points."""
    training = trainings_of(facts_of(attempts=(attempt_row(1.0, DAY_S),)))
    assert ettr_series((), 0, 1) == ettr_series(training, 1, 1) == ettr_series(training, 0, 1, points=0) == ()
    late = ettr_series(training, 0.0, 10 * DAY_S, points=10)
    assert [point.sliding is None for point in late] == [False] + [True] * 9


def test_a_hang_that_was_only_observed_is_no_restart() -> None:
    """It waited for a person; the same stamps of an incident that was acted on are a restart."""
    at_s = DAY_S + 1000
    attempt = attempt_row(DAY_S, DAY_S + 5000, last_step_at_s=at_s)
    times = {"fault": at_s, "suspected": at_s + 10, "decided": at_s + 15}
    for outcome, parts in (("observed", (3990.0, 0.0)), ("resumed", (5.0, 3985.0))):
        facts = facts_of(attempts=(attempt,), incidents=(incident_row(at_s, outcome=outcome, times=times),))
        seconds = figures_of(facts).time_by_training[trainings_of(facts)[0].key].seconds
        assert (seconds[Spent.DIAGNOSIS], seconds[Spent.RESTART]) == parts
