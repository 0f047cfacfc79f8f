"""What is done about marked faults, from what Slurm shows: storms, jobs that are moved, and the wait before a drain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.site import BreakerConfig
from slurm_robust.core.model import JobRef
from slurm_robust.marks.fault_marker import CLOCKS_DIFFER_S, FaultMarker
from slurm_robust.policy.cluster.node_faults import (
    GATHER_MORE_S,
    GATHER_S,
    STORM_S,
    SUPERVISOR_S,
    JobThere,
    SeenFault,
    Storm,
    Stormy,
    concerns,
    grown,
    in_storm,
    near,
    next_step,
    started_later,
)
from slurm_robust.slurm.client import Job, Node

NODES = {f"n{i}": Node(f"n{i}", "ALLOCATED", partitions=("main",)) for i in range(1, 11)}
HALF = BreakerConfig(max_drains=8, max_partition_share=0.5)
JOB = Job(JobRef(1), "RUNNING", "ann", 1000, "main", nodes=("n1",), start_at_s=900)
MARKER = FaultMarker(1000, "xid", (0,), "XID 79")
FAULT = SeenFault(MARKER, 1000.0)
LATER_S = GATHER_S + 1
NONE = Stormy(frozenset(), frozenset())


def faults(*at_s: float, first: int = 1, kind: str = "xid") -> dict[str, SeenFault]:
    """A fault on n1, n2, …, at these times."""
    made = (MARKER._replace(at_s=int(seconds), kind=kind) for seconds in at_s)
    return {f"n{i}": SeenFault(marker, float(marker.at_s)) for i, marker in enumerate(made, first)}


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
        ((1000, 1001, 1002), BreakerConfig(max_partition_share=0.2), 3),
        ((1000, 1001), BreakerConfig(max_partition_share=0.1), 0),
    ],
)
def test_faults_within_a_minute_on_more_nodes_than_the_breaker_allows(
    times: tuple[float, ...], config: BreakerConfig, storm: int
) -> None:
    """Or on more than half of all; one node alone is never a storm, nor are two for a partition's share."""
    assert len(in_storm(faults(*times), NODES, config).own) == storm


def test_of_three_nodes_two_are_no_storm() -> None:
    """So few may all be needed to make one fault known."""
    three = {name: NODES[name] for name in ("n1", "n2", "n3")}
    for share in (0.3, 1.0):
        assert in_storm(faults(1000, 1000), three, BreakerConfig(max_partition_share=share)) == NONE


def test_nodes_that_we_drained_in_that_minute_count() -> None:
    """Those that a person drained do not, nor our own of an hour ago."""
    one = BreakerConfig(max_drains=1)
    out = replace(NODES["n9"], flags=frozenset({"DRAIN"}), reason="srobust: XID 79", reason_at_s=990)
    assert in_storm(faults(1000), NODES | {"n9": out}, one).own == {"n1"}
    for other in (replace(out, reason="bad fan"), replace(out, reason_at_s=500)):
        assert in_storm(faults(1000), NODES | {"n9": other}, one) == NONE


def test_what_comes_within_a_minute_after_a_storm_is_part_of_it() -> None:
    """Its markers have been removed meanwhile. Of another kind, or in another partition, it is not."""
    storm = Storm(1000, frozenset({"xid"}), frozenset({"main"}))
    assert in_storm(faults(1050), NODES, HALF, storm) == Stormy(frozenset(), frozenset({"n1"}))
    assert in_storm(faults(1000 + STORM_S + 1), NODES, HALF, storm) == NONE
    assert in_storm(faults(1050, kind="disk_lost"), NODES, HALF, storm) == NONE
    elsewhere = NODES | {"n1": replace(NODES["n1"], partitions=("debug",))}
    assert in_storm(faults(1050), elsewhere, HALF, storm) == NONE


def test_late_faults_make_a_storm_no_longer_unless_they_are_too_many() -> None:
    """Its window ends a minute after its own last fault; what goes on as before is counted with what was cleared."""
    two, storm = BreakerConfig(max_drains=2, max_partition_share=1.0), None
    for at_s, own, late in ((1000.0, 3, 0), (1055.0, 0, 1), (1110.0, 0, 0)):
        now = faults(*[at_s] * (3 if own else 1), first=1 if own else 7)
        found = in_storm(now, NODES, two, storm)
        assert (len(found.own), len(found.late)) == (own, late)
        storm = grown(storm, found, now, NODES)
        assert storm.last_at_s == 1000.0
    for i, at_s in enumerate(range(1130, 1400, 15)):
        now = faults(at_s, first=i % 10 + 1)
        late = len(in_storm(now, NODES, two, storm).late)
        storm = grown(storm, Stormy(frozenset(), frozenset(now)), now, NODES)
        assert late == (i >= 2), "the third within a minute"


@pytest.mark.parametrize(
    ("kind", "fault", "job", "wanted"),
    [
        *[("xid", (), (0,), True), ("xid", (), (), False), ("gpu_count", (), (), False), ("xid", (), None, None)],
        *[("xid", (0,), None, None), ("xid", (0,), (0, 1), True), ("xid", (3,), (0, 1), False)],
        *[("xid", (0,), (), False), ("sxid", (2, 3), (0, 1), False)],
        *[("disk_lost", (), (), True), ("disk_lost", (), None, True)],
    ],
)
def test_a_gpus_fault_concerns_the_jobs_that_have_it(
    kind: str, fault: tuple[int, ...], job: tuple[int, ...] | None, wanted: bool | None
) -> None:
    """One that names no GPU concerns every job with a GPU there, and none without; other faults concern all jobs."""
    marker = MARKER._replace(kind=kind, gpus=fault)
    assert concerns(marker, JOB, None if job is None else frozenset(job)) is wanted


@pytest.mark.parametrize(("nodes", "wanted"), [(("n1",), False), (("n1", "n2"), None)])
def test_a_link_that_nodes_share_concerns_no_job_of_one_node(nodes: tuple[str, ...], wanted: bool | None) -> None:
    """Whether a job of several nodes trains over RDMA, only its supervisor knows."""
    for kind in ("port", "rdma_ports"):
        marker = MARKER._replace(kind=kind, gpus=())
        assert concerns(marker, replace(JOB, nodes=nodes), frozenset({0})) is wanted


@pytest.mark.parametrize(
    ("there", "seen_s", "moved", "waits"),
    [
        (JobThere(JOB, protected=True), GATHER_S - 0.1, False, True),
        (JobThere(JOB, protected=True), LATER_S, True, False),
        (JobThere(JOB), LATER_S, False, False),
        (JobThere(JOB, protected=True, gpus=frozenset({1})), LATER_S, False, False),
        (JobThere(JOB, protected=True, gpus=frozenset({0, 1})), LATER_S, True, False),
        (JobThere(JOB, protected=True, supervised=True), LATER_S, False, True),
        (JobThere(JOB, protected=True, supervised=True), SUPERVISOR_S, False, False),
        (JobThere(JOB, protected=True, supervised=True, gpus=frozenset({0})), LATER_S, False, True),
        (JobThere(JOB, protected=True, supervised=True, gpus=frozenset({0})), SUPERVISOR_S, True, False),
        (JobThere(JOB, protected=True, supervised=True, gpus=frozenset()), LATER_S, False, False),
        (JobThere(JOB, supervised=True), SUPERVISOR_S, False, False),
        (JobThere(JOB, protected=True, supervised=True, stays=True), LATER_S, False, True),
        (JobThere(JOB, protected=True, supervised=True, stays=True), SUPERVISOR_S, False, False),
        (JobThere(JOB, protected=True, recovering=True), LATER_S, False, True),
        (JobThere(JOB, protected=True, decided=True), LATER_S, False, False),
        (JobThere(replace(JOB, completing=True), protected=True), LATER_S, False, False),
        (JobThere(replace(JOB, state="PENDING"), protected=True), LATER_S, False, False),
        (JobThere(replace(JOB, start_at_s=1010), protected=True), LATER_S, False, False),
        (JobThere(replace(JOB, state="CONFIGURING")), LATER_S, False, True),
        (JobThere(replace(JOB, state="CONFIGURING"), gpus=frozenset({1})), LATER_S, False, False),
        (JobThere(replace(JOB, state="CONFIGURING", start_at_s=1010)), LATER_S, False, False),
    ],
)
def test_which_job_is_moved_and_when_the_drain_waits(there: JobThere, seen_s: float, moved: bool, waits: bool) -> None:
    """Its own supervisor first, then the daemon; a job that has nothing to do with it is left alone."""
    step = next_step(FAULT, [there], seen_s)
    assert step.bring_back == ((JOB,) if moved else ())
    assert bool(step.wait) is waits
    spares = next_step(FAULT._replace(marker=MARKER._replace(spares_jobs=True)), [there], seen_s)
    assert spares.bring_back == ()
    assert bool(spares.wait) is (seen_s < GATHER_S)


def test_a_further_fault_waits_for_more() -> None:
    """A storm takes some seconds to show."""
    job = JobThere(JOB, protected=True)
    assert next_step(FAULT, [job], LATER_S, GATHER_MORE_S).wait
    assert next_step(FAULT, [job], GATHER_MORE_S, GATHER_MORE_S).bring_back == (JOB,)
    marks = faults(1000, 1000 + STORM_S, 5000)
    assert [sorted(near(name, marks, {"n9": 4990})) for name in marks] == [["n2"], ["n1"], ["n9"]]


@pytest.mark.parametrize(
    ("at_s", "seen_s", "start_at_s", "later"),
    [
        (1000, 1002, 1008, True),
        (1000, 1002, 1007, False),
        (1000, 1300, 1030, False),  # its clock may be behind
        (1000, 1300, 1000 + CLOCKS_DIFFER_S + 6, True),
        (1500, 1002, 1008, True),  # its clock is ahead
        (1500, 1002, 1000, False),
    ],
)
def test_a_job_that_certainly_started_after_the_fault(at_s: int, seen_s: float, start_at_s: float, later: bool) -> None:
    """By whichever clock."""
    job = replace(JOB, start_at_s=int(start_at_s))
    assert started_later(job, SeenFault(MARKER._replace(at_s=at_s), seen_s)) is later


@given(st.lists(st.builds(JobThere, st.just(JOB), *[st.booleans()] * 5), max_size=5), st.floats(0, 200))
def test_a_drain_never_waits_longer_than_for_the_supervisor(jobs: list[JobThere], seen_s: float) -> None:
    """Or for a recovery that is open, which ends by itself."""
    step = next_step(FAULT, jobs, seen_s)
    if seen_s >= SUPERVISOR_S and not any(there.recovering for there in jobs):
        assert not step.wait
    may_move = [there for there in jobs if there.protected and not there.decided and not there.recovering]
    assert len(step.bring_back) <= len(may_move)
