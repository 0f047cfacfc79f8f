"""Whatever the rows say: figures are made, shares are shares, and parts sum."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_rows import DAY_S, NOW_S, attempt_row, drain_row, facts_of, incident_row, job_row

from slurm_robust.core.model import TIME_KEYS
from slurm_robust.daemon.store.attempt_ledger import ClusterSize, PoolSize
from slurm_robust.report.characterise.characterisation import characterise
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.all_figures import figures_of
from slurm_robust.report.figures.ettr import LOST
from slurm_robust.report.lemons import find_lemons

AT_S = st.one_of(st.floats(-DAY_S, NOW_S + DAY_S), st.sampled_from([0.0, -1e18, 1e18, 1e12]))
MAYBE_S = st.one_of(st.none(), AT_S)
ATTEMPTS = st.builds(
    lambda start_s, end_s, nodes, gpus, lost_s, restart: attempt_row(
        start_s, end_s, nodes=nodes, gpus=gpus, slow_s=lost_s, checkpoint_s=lost_s, restart=restart
    ),
    *(AT_S, MAYBE_S, st.integers(0, 40), st.integers(0, 300), st.floats(-10, 1e7), st.integers(0, 3)),
)
INCIDENTS = st.builds(
    lambda at_s, number, times, outcome, road, evict, standby, nodes: incident_row(
        at_s, number, times=times, outcome=outcome, road=road, evict=evict, standby=standby, nodes=nodes
    ),
    AT_S,
    st.integers(0, 9),
    st.dictionaries(st.sampled_from((*TIME_KEYS, "accepted", "nonsense")), AT_S, max_size=8),
    st.sampled_from(("resumed", "went_on", "superseded", "", "x")),
    st.sampled_from(("seat", "plain_requeue", "stop", "", "x")),
    st.lists(st.sampled_from(("n1", "n2", "")), max_size=3).map(tuple),
    st.lists(st.sampled_from(("n8", "n9")), max_size=3).map(tuple),
    st.integers(0, 2000),
)
FACTS = st.builds(
    lambda attempts, incidents, drains, jobs, pools, sizes: facts_of(
        attempts=tuple(attempts),
        incidents=tuple(incidents),
        drains=tuple(drain_row(f"n{n}", at_s, ended_at_s=end_s) for n, at_s, end_s in drains),
        jobs=tuple(job_row(start_s, end_s, gpus=gpus) for start_s, end_s, gpus in jobs),
        pools=tuple(PoolSize(at_s, f"pool{n % 2}", "p", n, ("n8", "n9")[:n]) for at_s, n in pools),
        sizes=tuple(ClusterSize(at_s, "g", nodes, 8) for at_s, nodes in sizes),
    ),
    st.lists(ATTEMPTS, max_size=4),
    st.lists(INCIDENTS, max_size=5, unique_by=lambda incident: incident.key),
    st.lists(st.tuples(st.integers(1, 4), AT_S, MAYBE_S), max_size=6),
    st.lists(st.tuples(MAYBE_S, MAYBE_S, st.integers(0, 64)), max_size=6),
    st.lists(st.tuples(AT_S, st.integers(0, 3)), max_size=4),
    st.lists(st.tuples(AT_S, st.integers(0, 50)), max_size=3),
)


def share(value: float | None) -> bool:
    """None, or between 0 and 1."""
    return value is None or -1e-9 <= value <= 1 + 1e-9


@settings(max_examples=60)
@given(FACTS)
def test_any_facts_give_figures(facts: Facts) -> None:
    """No error, no share outside of 0 and 1, no negative hours; costs sum to the loss; time is that of the window."""
    figures = figures_of(facts)
    time = figures.time
    assert share(time.ettr)
    assert share(time.at_most)
    if time.shares is not None:
        assert math.fsum(time.shares.values()) == pytest.approx(1.0)
    for training in figures.time_by_training.values():
        assert 0 <= training.total_s <= NOW_S * (1 + 1e-9)
    for point in figures.series:
        assert share(point.cumulative)
        assert share(point.sliding)
    lost = sum(time.seconds[what] for what in LOST) / 3600.0
    if figures.costs.total_hours is not None:
        assert figures.costs.total_hours == pytest.approx(lost, rel=1e-6, abs=1e-6)
        assert sum(row.hours or 0.0 for row in figures.costs.by_road) == pytest.approx(lost, rel=1e-6, abs=1e-6)
    for row in (*figures.reliability.rows, figures.reliability.total):
        assert row.by_hours.exposure >= 0
        assert row.back_s.median is None or row.back_s.median >= 0
    for prediction in figures.expected:
        assert share(prediction.prediction.expected)
    assert share(figures.standby.hit_rate)
    assert all(pool.held_hours >= 0 and pool.short_hours >= 0 for pool in figures.standby.pools)
    assert all(-1e-9 <= node.out_hours <= NOW_S / 3600.0 + 1e-9 for node in figures.nodes)


@settings(max_examples=50)
@given(FACTS)
def test_any_facts_give_a_characterisation_and_lemons(facts: Facts) -> None:
    """GPU hours are not negative, shares are shares, and a lemon is a node."""
    found = characterise(facts)
    assert found.gpu_hours >= 0
    assert share(found.failed_share)
    assert share(found.infrastructure_of_gpu_time)
    assert all(point.in_use >= 0 for point in found.usage)
    report = find_lemons(facts)
    assert all(lemon.node_days > 0 for lemon in (*report.lemons, *report.watched))


def test_sizes_that_do_not_follow_each_other_weigh_no_second_twice() -> None:
    """An attempt that could have started before the one before it: clocks were set, or Slurm kept the time."""
    rows = (
        attempt_row(100.0, 1000.0, gpus=8),
        attempt_row(1000.0, 2000.0, gpus=16, restart=1),
        attempt_row(2000.0, 3000.0, gpus=8, restart=2, eligible_at_s=500.0),
    )
    figures = figures_of(facts_of(attempts=rows))
    assert figures.time.total_s == pytest.approx(900 * 8 + 1000 * 16 + 1000 * 8)
