"""The simulated month that other tests rely on: its truth is the truth of its facts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from simulated_month import simulated_month

DAY_S = 86400.0


@pytest.mark.parametrize("seed", range(4))
def test_a_month_adds_up(seed: int) -> None:
    """Categories sum to the time of a training, no node has two jobs at a time, and counts agree with rows."""
    facts, truth = simulated_month(seed, lemons=(3,), failures_per_day=0.02)
    for spent in truth.spent.values():
        assert sum(spent.values()) == pytest.approx(30 * DAY_S, abs=1e-3)
        assert min(spent.values()) >= 0
    assert len(facts.incidents) == truth.incidents == truth.by_road.total() + truth.false_alarms
    assert (
        len(facts.drains)
        == truth.drains
        == truth.node_failures.total() + sum("strikes" in d.reason for d in facts.drains)
    )
    assert sum(d.reverted for d in facts.drains) == truth.reverted_drains
    assert len(facts.jobs) == truth.jobs_by_state.total() == 400 + len(facts.attempts)
    assert [p.at_s for p in facts.pools] == sorted({p.at_s for p in facts.pools})
    used: dict[str, list[tuple[float, float]]] = {}
    for job in facts.jobs:
        for node in job.nodes:
            assert job.started_at_s is not None
            used.setdefault(node, []).append((job.started_at_s, job.ended_at_s or facts.to_s))
    for spans in used.values():
        spans.sort()
        assert all(one[1] <= other[0] + 1e-6 for one, other in pairwise(spans))


def test_the_same_seed_gives_the_same_month() -> None:
    """Also another size of cluster: one node, none, and no failure at all."""
    assert simulated_month(5) == simulated_month(5)
    assert simulated_month(5)[0] != simulated_month(6)[0]
    for nodes in (0, 1, 2, 8):
        facts, _ = simulated_month(1, nodes=nodes, jobs=5, failures_per_day=0.0, program_failures_per_day=0.0)
        assert {i.outcome for i in facts.incidents} <= {"went_on"}
