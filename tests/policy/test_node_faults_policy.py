"""node_faults: which nodes a job leaves for what they report, and what `decide` makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import NODES, UNDETERMINED, USER_CODE, culprit, situation

from slurm_robust.core.model import Conclusion, Failure, FailureCause, Road, Signal, SignalKind, Verdict
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.eviction import max_evictions
from slurm_robust.policy.job.node_faults import (
    AT_ONCE_S,
    MILD_MOVES,
    MILD_WITHIN_S,
    POLLED_SETTLE_S,
    REPEAT_WITHIN_S,
    SETTLE_S,
    FaultMove,
    settle_s,
    weigh,
)
from slurm_robust.policy.job.situation import JobFacts, Situation

URGENCIES = ("now", "if_repeated", "at_next_checkpoint", "note")


def fault(node: str, urgency: str = "now", at_s: float = 100.0, kind: str = "xid", port: str = "") -> Signal:
    """A fault that a node reports."""
    evidence = {"kind": kind, "urgency": urgency, "gpus": (), "port": port, "code": None}
    return Signal(SignalKind.NODE_FAULT, at_s, "kmsg", f"a {kind} fault", node, evidence=evidence)


faults = st.builds(
    fault,
    st.sampled_from([*NODES, "elsewhere"]),
    st.sampled_from(URGENCIES),
    st.floats(0, 2000),
    st.sampled_from(["xid", "link"]),
    st.sampled_from(["", "mlx5_0/1"]),
)


@given(st.lists(faults, max_size=8))
def test_whatever_nodes_report(signals: list[Signal]) -> None:
    """A note moves nothing, no node of others is left, a storm leaves none, and the order does not matter."""
    found = weigh(signals, NODES, NODES)
    assert weigh(list(reversed(signals)), NODES, NODES).all.keys() == found.all.keys()
    assert set(found.all) <= set(NODES)
    assert not set(found.leave_now) & set(found.leave_later)
    acting = {s.node for s in signals if s.evidence["urgency"] != "note"}
    assert set(found.all) | {s.node for s in found.storm} <= acting
    assert set(found.leave_later) <= {s.node for s in signals if s.evidence["urgency"] == "at_next_checkpoint"}
    for node in found.leave_now:
        own = [s for s in signals if s.node == node]
        assert any(s.evidence["urgency"] == "now" for s in own) or len(own) > 1
    assert all(why.startswith(f"node {node} reports ") for node, why in found.all.items())
    if found.storm:
        # Around each of them are so many, but not each of those has so many around itself.
        centre = found.storm[0]
        near = {s.node for s in signals if abs(s.at_s - centre.at_s) <= AT_ONCE_S and s.node in acting}
        assert len(near) > max_evictions(len(NODES))


def test_each_urgency_has_its_time() -> None:
    """At once, after a checkpoint, never; one link flap is nothing."""
    assert weigh([fault("n1")], NODES, NODES).leave_now == {"n1": "node n1 reports a xid fault"}
    assert weigh([fault("n1", "at_next_checkpoint")], NODES, NODES).leave_later == {"n1": "node n1 reports a xid fault"}
    assert weigh([fault("n1", "note"), fault("n1", "if_repeated")], NODES, NODES).all == {}


@pytest.mark.parametrize(
    ("second", "left"),
    [
        (fault("n1", "if_repeated", 100 + REPEAT_WITHIN_S, "link", "mlx5_0/1"), True),
        (fault("n1", "if_repeated", 101 + REPEAT_WITHIN_S, "link", "mlx5_0/1"), False),
        (fault("n1", "if_repeated", 160, "link", "mlx5_1/1"), False),
        (fault("n2", "if_repeated", 160, "link", "mlx5_0/1"), False),
        (fault("n1", "if_repeated", 160, "xid", "mlx5_0/1"), False),
    ],
)
def test_a_fault_that_is_repeated_is_the_same_on_one_node_and_port_within_five_minutes(
    second: Signal, left: bool
) -> None:
    """Another port, another node, another kind or a later one begins to count anew."""
    first = fault("n1", "if_repeated", 100, "link", "mlx5_0/1")
    assert bool(weigh([first, second], NODES, NODES).leave_now) is left


def test_faults_on_more_than_half_of_the_nodes_at_once_leave_no_node() -> None:
    """And a node that reports the same later, alone, is left."""
    storm = [fault(node, at_s=100 + n) for n, node in enumerate(NODES[:3])]
    found = weigh(storm, NODES, NODES)
    assert (found.all, found.storm) == ({}, tuple(storm))
    alone = fault("n4", at_s=200 + AT_ONCE_S)
    assert set(weigh([*storm, alone], NODES, NODES).leave_now) == {"n4"}
    assert set(weigh(storm[:2], NODES, NODES).leave_now) == {"n1", "n2"}
    assert set(weigh([fault("n1")], ["n1"], ["n1"]).leave_now) == {"n1"}


def test_unlike_faults_on_many_nodes_are_a_storm_only_where_all_are_urgent() -> None:
    """A GPU is lost on one node, links flap once on two others: only the first is left."""
    flaps = [fault(node, "if_repeated", kind="link") for node in NODES[:2]]
    assert set(weigh([*flaps, fault("n3")], NODES, NODES).leave_now) == {"n3"}
    kinds = [fault(node, kind=f"kind{node}") for node in NODES[:3]]
    assert len(weigh(kinds, NODES, NODES).storm) == 3


REPORTED = {"n2": "node n2 reports XID 79"}
ENDS = st.sampled_from(
    [
        culprit("n1"),
        culprit("n1", infrastructure=False),
        culprit("n1", "n3", "n4"),
        UNDETERMINED,
        Verdict(Conclusion.CULPRIT, "cuda", culprit("n2", infrastructure=False).suspects),
    ]
)
FAILURES = st.none() | st.builds(Failure, st.sampled_from(["a", "b"]), st.just(("n2",)), st.sampled_from(FailureCause))


def _launch_failed(failure: Failure | None) -> bool:
    """Another allocation is wanted, with or without the node."""
    return failure is not None and failure.cause is FailureCause.SLURM


SITUATIONS = st.builds(
    situation,
    ENDS,
    failure=FAILURES,
    earlier_failures=st.lists(FAILURES.filter(bool), max_size=2).map(tuple),
    restarts_in_place=st.integers(0, 2),
    job=st.builds(JobFacts, st.booleans()),
    ended=st.booleans(),
    resumes=st.sampled_from([True, False, None]),
    outage_wait_s=st.just(1800.0),
    faulty_nodes=st.just(REPORTED),
)


@given(SITUATIONS)
def test_no_attempt_starts_again_on_a_node_that_has_reported_a_fault(s: Situation) -> None:
    """Whatever ended the attempt: a plan that starts another one leaves the node, or nothing is started."""
    plan = decide(s)
    assert len(plan.evict) <= max_evictions(len(NODES))
    if plan.road not in (Road.STOP, Road.ALERT_ONLY) and not _launch_failed(s.failure):
        assert "n2" in plan.evict, plan
    if not s.ended and not s.verdict.corroborated:
        assert plan.road is Road.ALERT_ONLY


def test_an_outage_is_waited_for_and_the_node_is_left() -> None:
    """The pause of the outage, on the road without the node."""
    shared = Failure("storage", ("n1",), FailureCause.SHARED)
    plan = decide(situation(UNDETERMINED, failure=shared, ended=True, outage_wait_s=1800.0, faulty_nodes=REPORTED))
    assert (plan.road, plan.evict, plan.pause_s) == (Road.SPARE_IN_ALLOCATION, ("n2",), 5.0)


def test_a_fault_does_not_bring_back_what_ended_by_itself() -> None:
    """The program's own error, and a training that has finished."""
    done = Verdict(Conclusion.NONE, "every rank ended with exit code 0")
    for verdict in (USER_CODE, done):
        plan = decide(situation(verdict, ended=True, exit_code=3, faulty_nodes=REPORTED))
        assert (plan.road, plan.exit_code) == (Road.STOP, 3)


def test_a_job_that_cannot_leave_the_node_is_left_running() -> None:
    """No spare, no requeue: the fault is announced, and the training goes on while it can."""
    s = situation(culprit("n2"), healthy_spares=(), training_node_count=5, faulty_nodes=REPORTED)
    alone = replace(s, training_nodes=NODES, job=JobFacts(requeueable=False))
    assert decide(alone).road is Road.ALERT_ONLY
    assert decide(replace(alone, ended=True, exit_code=1)).road is Road.STOP


def test_who_is_at_fault_goes_before_a_node_that_only_reported_something() -> None:
    """Both are too many: the dead node or the culprit is left, and not a warm one in its place."""
    job = JobFacts(survives_node_failure=True)
    dead = situation(UNDETERMINED, ended=True, job=job, dead_nodes=("n2",), faulty_nodes={"n3": "n3 is hot"})
    two = replace(dead, allocation_nodes=("n2", "n3", "n5"), training_nodes=("n2", "n3"), training_node_count=2)
    assert decide(two).evict == ("n2",)
    spare = replace(
        two, verdict=culprit("n2"), dead_nodes=(), ended=False, healthy_spares=(), faulty_nodes={"n5": "n5 is hot"}
    )
    assert decide(spare).evict == ("n2", "n5"), "a spare costs the training nothing"


def test_a_lost_gpu_and_a_row_remap_elsewhere_are_no_storm() -> None:
    """Both are XIDs."""
    lost = replace(fault("n1"), evidence={**fault("n1").evidence, "code": 79})
    other = fault("n2", "at_next_checkpoint", 120.0)
    other = replace(other, evidence={**other.evidence, "code": 63})
    found = weigh([lost, other], ("n1", "n2"), ("n1", "n2"))
    assert (list(found.leave_now), list(found.leave_later), found.storm) == (["n1"], ["n2"], ())


def test_what_comes_within_seconds_is_one_event() -> None:
    """Both ports of a card, or a finding that is told again."""
    for apart_s, left in ((0.3, []), (9.0, []), (11.0, ["n1"])):
        pair = [fault("n1", "if_repeated", at_s, "cable_error") for at_s in (100.0, 100.0 + apart_s)]
        assert list(weigh(pair, NODES, NODES).leave_now) == left


def test_faults_of_three_nodes_are_three_failures() -> None:
    """They say nothing about the program: a spare is there, and it is taken."""
    earlier = tuple(Failure("node: node_fault", (node,), FailureCause.NODE) for node in ("n1", "n2"))
    now = situation(culprit("n3"), failure=replace(earlier[0], nodes=("n3",)), earlier_failures=earlier, fruitless=3)
    assert decide(now).evict == ("n3",)


def left(node: str, at_s: float, *, kind: str = "xid", urgency: str = "at_next_checkpoint") -> FaultMove:
    """A node that the job has left."""
    return FaultMove(at_s, node, urgency, kind)


def test_one_sort_of_mild_fault_on_a_third_node_moves_nothing() -> None:
    """Two nodes were left for it: a cause that nodes share. Another sort, or a day later, and the node is left."""
    moves = [left("x1", 100), left("x2", 200)]
    mild = fault("n1", "at_next_checkpoint", 300)
    found = weigh([mild], NODES, NODES, moves)
    assert found.all == {}
    assert "a cause that nodes share" in found.stays["n1"]
    other = fault("n1", "at_next_checkpoint", 300, kind="filesystem")
    assert weigh([other], NODES, NODES, moves).leave_later == {"n1": "node n1 reports a filesystem fault"}
    late = fault("n1", "at_next_checkpoint", 101 + MILD_WITHIN_S)
    assert list(weigh([late], NODES, NODES, moves).leave_later) == ["n1"]
    drains = [left("x1", 100, kind="drained"), left("x2", 200, kind="drained")]
    assert list(weigh([fault("n1", "at_next_checkpoint", 300, kind="drained")], NODES, NODES, drains).leave_later)
    again = fault("x1", "at_next_checkpoint", 300)
    assert list(weigh([again], ["x1", *NODES], NODES, moves).leave_later) == ["x1"], "it is no third node"


def test_a_job_is_moved_for_mild_faults_three_times_a_day() -> None:
    """Nodes that are left together are one move, and an urgent fault moves the job all the same."""
    kinds = ("disks", "filesystem", "ethernet")
    moves = [left(f"x{at}", 100.0 * at, kind=kind) for at, kind in enumerate(kinds)]
    mild, urgent = fault("n1", "at_next_checkpoint", 400), fault("n2", "now", 400)
    found = weigh([mild, urgent], NODES, NODES, moves)
    assert (list(found.leave_now), found.leave_later, list(found.stays)) == (["n2"], {}, ["n1"])
    assert f"moved {MILD_MOVES} times" in found.stays["n1"]
    together = [replace(move, at_s=100.0) for move in moves]
    assert list(weigh([mild], NODES, NODES, together).leave_later) == ["n1"]
    assert list(weigh([mild], NODES, NODES, [replace(m, urgency="now") for m in moves]).leave_later) == ["n1"]


@pytest.mark.parametrize(("at_s", "stormy"), [(159.0, True), (161.0, False)])
def test_a_node_that_was_just_left_counts_towards_a_storm(at_s: float, stormy: bool) -> None:
    """Polled sources report one after the other what came to all nodes at once: two of two nodes share it."""
    moves = [left("x1", 100.0, kind="disks", urgency="now")]
    found = weigh([fault("n1", "now", at_s, kind="disks")], ["n1", "n2"], ["n1", "n2"], moves)
    assert [s.node for s in found.storm] == (["x1", "n1"] if stormy else [])
    assert list(found.leave_now) == ([] if stormy else ["n1"])


@pytest.mark.parametrize(
    ("source", "kind", "waits_s"),
    [("poll", "disks", POLLED_SETTLE_S), ("nvml", "xid", SETTLE_S), ("kmsg", "xid", SETTLE_S)],
)
def test_only_what_is_polled_for_waits_longer(source: str, kind: str, waits_s: float) -> None:
    """An event is there at once; what its nodes look for comes later from one than from the other."""
    assert settle_s([replace(fault("n1", kind=kind), source=source)]) == waits_s
