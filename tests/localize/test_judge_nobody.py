"""Evidence in which nobody may be named, and what the verdict says instead."""

from __future__ import annotations

from dataclasses import replace

from localize_scenes import (
    BARRIER,
    EVALUATE,
    USER,
    WORKER_LOCK,
    WORKER_NATIVE,
    assert_nobody,
    capture,
    evidence,
    in_loader,
    process,
    rank,
    repeated,
    waiting,
    with_peers,
)

from slurm_robust.core.model import Conclusion, Grade
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.judge import judge


def test_all_in_the_same_collective() -> None:
    """A link fault leaves every rank there; stacks cannot name a node, and the verdict says what would.

    That nobody works is strong evidence of a hang all the same: the nodes are tested.
    """
    verdict = judge(repeated(*[waiting(n) for n in range(4)], times=4, every_s=60.0))
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())
    assert (verdict.corroborated, verdict.grade) == (True, Grade.STRONG)
    assert any("flight recorder" in what for what in verdict.missing)


def test_wrong_order_of_collectives() -> None:
    """One rank in a barrier, the others in an all-reduce: code, or a lost message; no node."""
    verdict = judge(repeated(*with_peers(waiting(1, BARRIER)), times=4))
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())
    assert (verdict.corroborated, verdict.grade) == (True, Grade.STRONG)


def test_progress_is_innocence() -> None:
    """A step completed between the captures ends every suspicion."""
    before = capture(1000.0, *with_peers(in_loader(1, process(WORKER_LOCK))))
    later = [replace(r, progress=replace(r.progress, step=21)) if r.progress else r for r in before.ranks]
    assert_nobody(judge(evidence(before, capture(1005.0, *later))), Conclusion.NONE)


def test_nothing_known() -> None:
    """No evidence, no culprit."""
    assert_nobody(judge(Evidence(4, {n: f"n{n}" for n in range(4)})), Conclusion.UNDETERMINED)


def test_suspended_job() -> None:
    """Every rank stopped: Slurm's suspend, a preemption."""
    assert_nobody(judge(repeated(*[rank(n, process(USER, state="T")) for n in range(4)])), Conclusion.NONE)


def test_all_wait_for_data() -> None:
    """Every rank stands in its loader: shared storage, no node."""
    verdict = judge(repeated(*[in_loader(n, process(WORKER_NATIVE)) for n in range(4)], times=4, every_s=60.0))
    assert_nobody(verdict, Conclusion.UNDETERMINED)


def test_most_nodes_outside() -> None:
    """Loaders of three of four nodes stand: what they share is at fault."""
    ranks = [*(in_loader(n, process(WORKER_LOCK)) for n in range(3)), waiting(3)]
    assert_nobody(judge(repeated(*ranks)), Conclusion.UNDETERMINED)


def test_most_nodes_silent() -> None:
    """More silent nodes than half: the network, or ourselves."""
    nodes = {n: f"n{n}" for n in range(4)}
    captures = [capture(t, waiting(0), missing=["n1", "n2", "n3"]) for t in (1000.0, 1005.0)]
    assert_nobody(judge(evidence(*captures, nodes=nodes)), Conclusion.UNDETERMINED)


def test_lost_agent_of_a_moving_job() -> None:
    """An agent killed beside healthy ranks: the others move, so its node is not blamed."""
    nodes = {n: f"n{n}" for n in range(4)}
    captures = [
        capture(1000.0 + i, *(rank(n, process(EVALUATE, cpu_s=float(i))) for n in (0, 2, 3)), missing=["n1"])
        for i in (0, 5)
    ]
    assert_nobody(judge(evidence(*captures, nodes=nodes)), Conclusion.UNDETERMINED)


def test_endless_loop_is_told_from_motion() -> None:
    """Busy at one line: slow or endless, nobody can tell yet; no node."""
    captures = [capture(1000.0 + t, *with_peers(rank(1, process(USER, cpu_s=t, state="R")))) for t in (0, 5, 10)]
    assert_nobody(judge(evidence(*captures)), Conclusion.UNDETERMINED)
