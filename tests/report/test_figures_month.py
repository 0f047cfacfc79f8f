"""Every figure of a simulated month, beside the truth of that month."""

from __future__ import annotations

import pytest
from simulated_month import Truth, simulated_month

from slurm_robust.core.training_time import Spent
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.all_figures import Figures, figures_of
from slurm_robust.report.figures.ettr import LOST, time_of_all
from slurm_robust.report.figures.expected import _alike

SEEDS = (1, 2, 3)
SeenMonth = tuple[Figures, Facts, Truth]


@pytest.fixture(scope="module", params=SEEDS)
def month(request: pytest.FixtureRequest) -> SeenMonth:
    """A month with many failures."""
    facts, truth = simulated_month(request.param, failures_per_day=0.02)
    return figures_of(facts), facts, truth


def test_time_is_that_of_the_truth(month: SeenMonth) -> None:
    """By training and category, to the tenth of a second; the cluster's ETTR is their mean by GPU time."""
    figures, _, truth = month
    assert {key.lineage for key in figures.time_by_training} == set(truth.spent)
    weighed = whole = 0.0
    for training in figures.trainings:
        time, spent = figures.time_by_training[training.key], truth.spent[training.key.lineage]
        assert dict(time.seconds) == pytest.approx(spent, abs=0.1)
        assert time.ettr == pytest.approx(truth.ettr[training.key.lineage], abs=1e-9)
        weighed += spent[Spent.PRODUCTIVE] * training.gpus
        whole += sum(spent.values()) * training.gpus
    assert figures.time.unit == "gpu"
    assert figures.time.ettr == figures.time.at_most == pytest.approx(weighed / whole, abs=1e-9)
    assert sum((figures.time.shares or {}).values()) == pytest.approx(1.0, abs=1e-12)


def test_the_series_ends_at_the_cumulative_figure(month: SeenMonth) -> None:
    """And every hour's shares sum to 1."""
    figures, _, _ = month
    assert len(figures.series) == 500
    assert figures.series[-1].cumulative == pytest.approx(figures.time.ettr, abs=1e-9)
    for point in figures.series:
        assert point.sliding is not None
        assert sum(point.shares.values()) == pytest.approx(1.0, abs=1e-9)
        assert min(point.shares.values()) >= 0


def test_costs_sum_to_what_was_lost(month: SeenMonth) -> None:
    """By category, by blame and by road alike; counts are those of the truth."""
    figures, _, truth = month
    lost = sum(figures.time.seconds[what] for what in LOST) / 3600
    costs = figures.costs
    assert costs.total_hours == pytest.approx(lost, rel=1e-9)
    for table in (costs.by_category, costs.by_blame, costs.by_road):
        assert sum(row.hours or 0.0 for row in table) == pytest.approx(lost, rel=1e-9)
    assert {row.name: row.failures for row in costs.by_category if row.failures} == dict(+truth.by_category)
    assert {row.name: row.failures for row in costs.by_road if row.failures} == dict(+truth.by_road)
    assert {row.road: row.restarts for row in figures.restarts} == dict(+truth.by_road)


def test_counts_are_those_of_the_truth(month: SeenMonth) -> None:
    """Failures, false alarms, reverted drains, standby hits."""
    figures, _facts, truth = month
    total = figures.reliability.total
    assert total.by_hours.failures == truth.interruptions.total()
    assert total.infrastructure.failures == truth.infrastructure.total()
    assert total.back_s.n == total.by_hours.failures
    assert sum(row.by_hours.failures for row in figures.reliability.rows) == total.by_hours.failures
    wrong = figures.false_alarms
    assert (wrong.false_alarms, wrong.drains, wrong.reverted_drains) == (
        truth.false_alarms,
        truth.drains,
        truth.reverted_drains,
    )
    assert (figures.standby.hits, figures.standby.misses) == (truth.standby_hits, truth.standby_misses)
    assert sum(row.counts["drain"] for row in figures.nodes) == truth.drains
    assert figures.goodput.capacity == pytest.approx(50 * 8 * 30 * 24)
    assert figures.goodput.used == pytest.approx(truth.gpu_hours_by_state.total())
    assert figures.sentences == ()


def test_the_formula_is_near_what_was_measured(month: SeenMonth) -> None:
    """Its symbols come from the same month, so for the cluster it must not be far off."""
    figures, _facts, _ = month
    assert figures.symbols.restart_s is not None
    assert 60 < figures.symbols.restart_s < 250
    for row in figures.expected:
        assert row.prediction.why == ""
        assert row.prediction.low <= row.prediction.expected <= row.prediction.high
    nodes = sum(row.training.nodes for row in figures.expected)
    mean = sum(row.prediction.expected * row.training.nodes for row in figures.expected) / nodes
    assert mean == pytest.approx(_alike(time_of_all(figures.trainings)), abs=0.005)
