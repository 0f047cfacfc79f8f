"""A data loader that hangs is weak evidence: its node is only left if the kernel or the node itself says more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import (
    WORKER_HTTP,
    WORKER_LOCK,
    WORKER_NATIVE,
    in_loader,
    named,
    process,
    repeated,
    signal,
    waiting,
    with_peers,
)

from slurm_robust.core.model import Failure, Plan, Road, SignalKind
from slurm_robust.localize.evidence import CapturedProcess, Evidence
from slurm_robust.localize.failure import failure_of
from slurm_robust.localize.judge import judge
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.situation import Situation

NODES = ("n0", "n1", "n2", "n3")


def hangs(worker: CapturedProcess, number: int = 1, node: str = "") -> Evidence:
    """Everybody waits for this rank's loader, for three minutes."""
    peers = [waiting(n) for n in (0, 2, 3) if f"n{n}" != node]
    return repeated(*with_peers(in_loader(number, worker, node=node), peers), times=5, every_s=50.0)


def planned(evidence: Evidence, *earlier: Failure) -> tuple[Plan, Failure | None]:
    """What is done about it, and the failure that is remembered."""
    verdict = judge(evidence)
    failure = failure_of(evidence, verdict)
    known = Situation(verdict, NODES, 4, NODES, failure=failure, earlier_failures=earlier)
    return decide(replace(known, restarts_in_place=len(earlier))), failure


@pytest.mark.parametrize(
    "worker",
    [process(WORKER_LOCK), process(WORKER_NATIVE), process(WORKER_HTTP), process(WORKER_NATIVE, wchan="futex_do_wait")],
    ids=["lock", "native", "http", "futex"],
)
def test_without_evidence_below_python_it_is_the_ranks(worker: CapturedProcess) -> None:
    """Named, acted on, and started again in place: nothing says that its node is at fault."""
    evidence = hangs(worker)
    assert named(judge(evidence)) == [("n1", (1,))]
    plan, _ = planned(evidence)
    assert plan.road is Road.RESTART_IN_PLACE
    assert not plan.evict


def test_when_it_comes_again_there_it_is_still_no_nodes() -> None:
    """The same hang on the same node: weak evidence stays weak, and the job is requeued with no node named."""
    _, failure = planned(hangs(process(WORKER_LOCK)))
    assert failure is not None
    plan, _ = planned(hangs(process(WORKER_LOCK)), failure)
    assert plan.road is Road.SEAT
    assert plan.evict == ()


def test_when_it_comes_again_elsewhere_it_is_the_programs() -> None:
    """On another node: no node is left, and the job stops."""
    _, failure = planned(hangs(process(WORKER_LOCK)))
    assert failure is not None
    plan, _ = planned(hangs(process(WORKER_LOCK), 2, "n2"), failure)
    assert plan.road is Road.STOP
    assert not plan.evict


@pytest.mark.parametrize(
    "worker",
    [
        process(WORKER_NATIVE, wchan="folio_wait_bit_common"),
        process(WORKER_NATIVE, state="T"),
    ],
    ids=["page", "stopped"],
)
def test_slow_storage_and_a_stopped_worker_cost_no_node(worker: CapturedProcess) -> None:
    """The storage may answer, and a program may stop its own worker: the step is restarted in place."""
    plan, _ = planned(hangs(worker))
    assert plan.road is Road.RESTART_IN_PLACE
    assert plan.evict == ()


def test_a_worker_in_d_state_is_the_nodes() -> None:
    """The kernel itself shows that it waits: its node is left once that has lasted."""
    plan, _ = planned(hangs(process(WORKER_NATIVE, state="D", wchan="nfs_wait_bit_killable")))
    assert plan.evict == ("n1",)


def test_what_the_node_reports_is_the_nodes() -> None:
    """A fault of its own in the same minutes: its node is left at once."""
    evidence = replace(hangs(process(WORKER_LOCK)), node_signals=(signal(SignalKind.NODE_FAULT, "n1", "XID 79"),))
    assert "XID 79" in judge(evidence).suspects[0].detail
    plan, _ = planned(evidence)
    assert plan.evict == ("n1",)
