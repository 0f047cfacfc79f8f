"""What is done about marked faults, from what Slurm shows: storms, jobs that are moved, and the wait before a drain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config import BreakerConfig
from slurm_robust.fault_marker import FaultMarker
from slurm_robust.model import JobRef
from slurm_robust.policy.cluster.node_faults import (
    GATHER_S,
    STORM_S,
    SUPERVISOR_S,
    JobThere,
    Storm,
    in_storm,
    next_step,
    touches,
)
from slurm_robust.slurm.client import Job, Node

NODES = {f"n{i}": Node(f"n{i}", "ALLOCATED", partitions=("main",)) for i in range(1, 11)}
HALF = BreakerConfig(max_drains=8, max_partition_share=0.5)
JOB = Job(JobRef(1), "RUNNING", "ann", 1000, "main", nodes=("n1",), start_at_s=900)
MARKER = FaultMarker(1000, "xid", (0,), "XID 79")
LATER_S = GATHER_S + 1


def faults(*at_s: float) -> dict[str, float]:
    """A fault on n1, n2, …, at these times."""
    return {f"n{i}": seconds for i, seconds in enumerate(at_s, 1)}


@pytest.mark.parametrize(
    ("times", "config", "storm"),
    [
        ((1000,), HALF, 0),
        ((1000,), BreakerConfig(max_drains=0), 0),
        ((1000, 1001), HALF, 0),
        ((1000, 1001), BreakerConfig(max_drains=1), 2),
        ((1000, 1000 + STORM_S + 1), BreakerConfig(max_drains=1), 0),
        ((1000,) * 5, HALF, 0),
        ((1000,) * 6, HALF, 6),
        ((1000,) * 6, BreakerConfig(max_drains=99, max_partition_share=1.0), 6),
        ((1000, 1001, 1002, 5000), BreakerConfig(max_drains=2), 3),
    ],
)
def test_faults_within_a_minute_on_more_nodes_than_the_breaker_allows(
    times: tuple[float, ...], config: BreakerConfig, storm: int
) -> None:
    """Or on more than half of all; one node alone is never a storm."""
    assert len(in_storm(faults(*times), NODES, config)) == storm


def test_of_three_nodes_two_are_no_storm_by_their_share() -> None:
    """So few may all be needed to make one fault known; the breaker's bounds hold there, too."""
    three = {name: NODES[name] for name in ("n1", "n2", "n3")}
    assert in_storm(faults(1000, 1000), three, BreakerConfig(max_partition_share=1.0)) == frozenset()
    assert in_storm(faults(1000, 1000), three, BreakerConfig(max_partition_share=0.3)) == {"n1", "n2"}


def test_nodes_that_drained_themselves_in_that_minute_count() -> None:
    """Those that a person drained do not, nor our own of an hour ago."""
    one = BreakerConfig(max_drains=1)
    out = replace(NODES["n9"], flags=frozenset({"DRAIN"}), reason="srobust: XID 79", reason_at_s=990)
    assert in_storm(faults(1000), NODES | {"n9": out}, one) == {"n1"}
    for other in (replace(out, reason="bad fan"), replace(out, reason_at_s=500)):
        assert in_storm(faults(1000), NODES | {"n9": other}, one) == frozenset()


def test_what_comes_within_a_minute_after_a_storm_is_part_of_it() -> None:
    """Its markers have been removed meanwhile."""
    assert in_storm(faults(1050), NODES, HALF, Storm(1000)) == {"n1"}
    assert in_storm(faults(1000 + STORM_S + 1), NODES, HALF, Storm(1000)) == frozenset()


@pytest.mark.parametrize(
    ("fault", "job", "wanted"),
    [((), (0,), True), ((0,), (), True), ((0,), (0, 1), True), ((0,), (1,), False), ((2, 3), (0, 1), False)],
)
def test_a_fault_concerns_a_job_unless_both_are_known_and_differ(
    fault: tuple[int, ...], job: tuple[int, ...], wanted: bool
) -> None:
    """None at all stands for not known."""
    assert touches(fault, job) is wanted


@pytest.mark.parametrize(
    ("there", "seen_s", "moved", "waits"),
    [
        (JobThere(JOB, protected=True), GATHER_S - 0.1, False, True),
        (JobThere(JOB, protected=True), LATER_S, True, False),
        (JobThere(JOB), LATER_S, False, False),
        (JobThere(JOB, protected=True, gpus=frozenset({1})), LATER_S, False, False),
        (JobThere(JOB, protected=True, gpus=frozenset({0, 1})), LATER_S, True, False),
        (JobThere(JOB, protected=True, supervised=True), LATER_S, False, True),
        (JobThere(JOB, protected=True, supervised=True), SUPERVISOR_S, True, False),
        (JobThere(JOB, supervised=True), SUPERVISOR_S, False, False),
        (JobThere(JOB, protected=True, supervised=True, stays=True), LATER_S, False, True),
        (JobThere(JOB, protected=True, supervised=True, stays=True), SUPERVISOR_S, False, False),
        (JobThere(JOB, protected=True, recovering=True), LATER_S, False, True),
        (JobThere(JOB, protected=True, decided=True), LATER_S, False, False),
        (JobThere(replace(JOB, completing=True), protected=True), LATER_S, False, False),
        (JobThere(replace(JOB, state="PENDING"), protected=True), LATER_S, False, False),
        (JobThere(replace(JOB, start_at_s=1010), protected=True), LATER_S, False, False),
    ],
)
def test_which_job_is_moved_and_when_the_drain_waits(there: JobThere, seen_s: float, moved: bool, waits: bool) -> None:
    """Its own supervisor first, then the daemon; a job that has nothing to do with it is left alone."""
    step = next_step(MARKER, [there], seen_s)
    assert step.bring_back == ((JOB,) if moved else ())
    assert bool(step.wait) is waits


@given(st.lists(st.builds(JobThere, st.just(JOB), *[st.booleans()] * 5), max_size=5), st.floats(0, 200))
def test_a_drain_never_waits_longer_than_for_the_supervisor(jobs: list[JobThere], seen_s: float) -> None:
    """Or for a recovery that is open, which ends by itself."""
    step = next_step(MARKER, jobs, seen_s)
    if seen_s >= SUPERVISOR_S and not any(there.recovering for there in jobs):
        assert not step.wait
    may_move = [there for there in jobs if there.protected and not there.decided and not there.recovering]
    assert len(step.bring_back) <= len(may_move)
