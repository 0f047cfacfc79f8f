"""Evidence in which somebody is at fault: who is named, how surely, and in which sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import (
    ALL_REDUCE,
    PEERS,
    SAVE,
    USER,
    USER_LOCK,
    WORKER_IDLE,
    WORKER_LOCK,
    capture,
    evidence,
    in_loader,
    named,
    process,
    rank,
    repeated,
    signal,
    waiting,
    with_peers,
)

from slurm_robust.core.model import Conclusion, Grade, Signal, SignalKind
from slurm_robust.localize.evidence import Evidence, RankCapture, RankExit
from slurm_robust.localize.judge import judge


def test_loader_deadlock_twice() -> None:
    """A loader that stands in a lock in two captures while all others wait: its rank, corroborated."""
    verdict = judge(repeated(*with_peers(in_loader(1, process(WORKER_LOCK)))))
    assert verdict.conclusion is Conclusion.CULPRIT
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated
    assert not verdict.suspects[0].infrastructure
    assert "data loader" in verdict.suspects[0].why


def test_a_reason_is_one_short_sentence() -> None:
    """Node, fault and evidence in about a hundred characters; what was seen besides is told as detail."""
    verdict = judge(repeated(*with_peers(in_loader(1, process(WORKER_LOCK)))))
    assert verdict.reason == verdict.suspects[0].why
    assert verdict.reason.startswith("rank 1 on n1: its data loader hangs at ")
    assert len(verdict.reason) <= 100
    assert "captures over" in verdict.suspects[0].detail
    assert "while ranks 0,2-3 wait at" in verdict.detail


def test_loader_deadlock_once() -> None:
    """One capture names it, with less confidence, and says that a second one is missing."""
    verdict = judge(repeated(*with_peers(in_loader(1, process(WORKER_LOCK))), times=1))
    assert named(verdict) == [("n1", (1,))]
    assert not verdict.corroborated
    assert verdict.suspects[0].confidence <= 0.6
    assert verdict.missing


def test_lost_item() -> None:
    """The rank waits for data and all its workers wait for work: nothing will come any more."""
    verdict = judge(repeated(*with_peers(in_loader(1, process(WORKER_IDLE)))))
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated


@pytest.mark.parametrize(
    "suspect",
    [
        rank(1, process(USER, state="T")),
        rank(1, process(None, state="T")),
        in_loader(1, process(WORKER_IDLE, state="T")),
        rank(1, process(ALL_REDUCE, wchan="do_freezer_trap")),
        rank(1, process(SAVE, state="T")),
    ],
    ids=["rank", "without a stack", "its loader", "frozen by a cgroup", "in a checkpoint"],
)
def test_stopped(suspect: RankCapture) -> None:
    """A stopped process in a rank's tree, in both captures, whatever its stack is: the rank is named, weakly."""
    verdict = judge(repeated(*with_peers(suspect)))
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated
    assert verdict.grade is Grade.WEAK
    assert not verdict.suspects[0].infrastructure


def test_stopped_once_is_not_enough() -> None:
    """py-spy or a debugger may stop a process for a moment."""
    going = capture(1000.0, *with_peers(rank(1, process(USER))))
    stopped = capture(1005.0, *with_peers(rank(1, process(USER, state="T"))))
    verdict = judge(evidence(going, stopped))
    assert named(verdict) == [("n1", (1,))]
    assert not verdict.corroborated


def test_lone_rank_stopped() -> None:
    """There is nobody to wait for it, and still it cannot go on."""
    assert judge(repeated(rank(0, process(USER, state="T")))).corroborated


def test_uninterruptible_in_three_captures() -> None:
    """D state that lasts is strong evidence; for 5 s it may be a slow read."""
    suspect = rank(1, process(USER, state="D", wchan="os_acquire_rwlock"))
    short, long = repeated(*with_peers(suspect)), repeated(*with_peers(suspect), times=3, every_s=5.0)
    assert named(judge(short)) == named(judge(long)) == [("n1", (1,))]
    assert not judge(short).corroborated
    assert judge(long).corroborated
    assert judge(long).grade is Grade.STRONG


def test_whole_node_outside() -> None:
    """Several ranks of one node outside the collective are one suspect."""
    peers = [waiting(n, node=f"n{n // 2}") for n in range(8) if n // 2 != 1]
    loaders = [in_loader(n, process(WORKER_LOCK), node="n1") for n in (2, 3)]
    verdict = judge(repeated(*peers, *loaders))
    assert named(verdict) == [("n1", (2, 3))]
    assert verdict.corroborated


def test_silent_agent_twice() -> None:
    """A node whose agent is gone in both captures, the others waiting."""
    nodes = {n: f"n{n}" for n in range(4)}
    captures = [capture(t, *PEERS, missing=["n1"]) for t in (1000.0, 1005.0)]
    verdict = judge(evidence(*captures, nodes=nodes))
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated
    once = judge(evidence(captures[1], nodes=nodes))
    assert named(once) == [("n1", (1,))]
    assert not once.corroborated


@pytest.mark.parametrize(("down", "grade"), [([], Grade.STRONG), (["n1"], Grade.CERTAIN), (["n3"], Grade.STRONG)])
def test_only_slurm_makes_a_silent_node_certain(down: list[str], grade: Grade) -> None:
    """A node that thrashes for seconds has a silent agent, too; so has one of two of which Slurm lost the other."""
    nodes = {n: f"n{n}" for n in range(6)}
    peers = [waiting(n) for n in range(6) if n not in (1, *(int(name[1:]) for name in down))]
    captures = [capture(t, *peers, missing=["n1"]) for t in (1000.0, 1005.0)]
    verdict = judge(evidence(*captures, nodes=nodes, signals=[signal(SignalKind.NODE_DOWN, n, "DOWN") for n in down]))
    assert {s.node for s in verdict.suspects} == {"n1", *down}
    assert (verdict.grade, verdict.corroborated) == (grade, True)


def test_an_agents_silence_is_counted_once() -> None:
    """The supervisor reports a missing answer as a signal too; that does not make it two."""
    nodes = {n: f"n{n}" for n in range(4)}
    once = evidence(
        capture(1000.0, *PEERS, waiting(1)),
        capture(1005.0, *PEERS, missing=["n1"]),
        nodes=nodes,
        signals=[signal(SignalKind.AGENT_SILENT, "n1")],
    )
    assert not judge(once).corroborated


def test_node_down_without_captures() -> None:
    """Slurm's word is enough."""
    verdict = judge(Evidence(2, {0: "n0", 1: "n1"}, node_signals=(signal(SignalKind.NODE_DOWN, "n1", "DOWN"),)))
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated


def test_node_fault_while_all_wait() -> None:
    """Stacks alone cannot tell; an XID on one node can."""
    ranks = [waiting(n) for n in range(4)]
    verdict = judge(repeated(*ranks, signals=[signal(SignalKind.NODE_FAULT, "n2", "XID 79")]))
    assert named(verdict) == [("n2", (2,))]
    assert verdict.corroborated
    assert "XID 79" in verdict.reason


def told(node: str, at_s: float, kind: str, urgency: str, port: str = "") -> Signal:
    """A finding of a node's service."""
    evidence = {"kind": kind, "urgency": urgency, "gpus": (), "port": port, "code": None}
    return Signal(SignalKind.NODE_FAULT, at_s, "rdma", f"{kind} {port}", node, evidence=evidence)


LOST_LINK = (
    told("n2", 990.0, "port", "if_repeated", "mlx5_0/1"),
    told("n2", 996.0, "rdma_ports", "at_next_checkpoint"),
)
SHAKEN = (
    told("n1", 991.0, "port", "if_repeated", "mlx5_0/1"),
    told("n1", 994.0, "port", "note", "mlx5_0/1"),
)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (LOST_LINK, ["n2"]),
        ((*LOST_LINK, *SHAKEN), ["n2"]),
        ((*LOST_LINK, told("n0", 980.0, "gpu_rows", "at_next_checkpoint")), ["n2"]),
        ((*LOST_LINK, told("n3", 995.0, "gpu_driver", "now")), ["n3"]),
        ((told("n0", 980.0, "gpu_throttle", "at_next_checkpoint"),), []),
        ((told("n3", 980.0, "gpu_driver", "now"), told("n3", 998.0, "gpu_driver", "note")), []),
        (SHAKEN, []),
    ],
)
def test_the_worst_fault_that_still_stands_and_may_hold_a_job(signals: tuple[Signal, ...], expected: list[str]) -> None:
    """Not the neighbour whose link came back, nor a row that waits to be remapped, nor what has passed."""
    verdict = judge(repeated(*(waiting(n) for n in range(4)), signals=signals))
    assert [node for node, _ in named(verdict)] == expected


@pytest.mark.parametrize(
    ("urgency", "blamed"), [("now", True), ("if_repeated", True), ("at_next_checkpoint", True), ("note", False)]
)
def test_an_application_xid_blames_no_node(urgency: str, blamed: bool) -> None:
    """The node's own service calls it a note: it explains neither a hang, nor a crash, nor a loader that stands."""
    told = replace(signal(SignalKind.NODE_FAULT, "n1", "XID 31"), evidence={"urgency": urgency, "code": 31})
    hang = judge(repeated(*(waiting(n) for n in range(4)), signals=[told]))
    assert (named(hang) == [("n1", (1,))]) is blamed
    loader = judge(repeated(*with_peers(in_loader(1, process(WORKER_LOCK))), signals=[told]))
    assert [s.infrastructure for s in loader.suspects] == [blamed]
    died = RankExit(1, "n1", told.at_s, 1, 0, ("RuntimeError: CUDA error: unspecified launch failure",))
    crash = judge(Evidence(2, {0: "n0", 1: "n1"}, exits=(died,), node_signals=(told,)))
    assert [s.infrastructure for s in crash.suspects] == [blamed]


def test_visible_culprit_beats_a_fault_report_elsewhere() -> None:
    """A link that flapped on another node does not explain a loader's deadlock here."""
    ranks = with_peers(in_loader(1, process(WORKER_LOCK)))
    verdict = judge(repeated(*ranks, signals=[signal(SignalKind.NODE_FAULT, "n3", "link flapped")]))
    assert named(verdict) == [("n1", (1,))]


def test_user_lock_is_the_rank_not_the_node() -> None:
    """A deadlock in the program's own code: the rank, late, and nothing about its node."""
    verdict = judge(repeated(*with_peers(rank(1, process(USER_LOCK))), times=5))
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated
    assert not verdict.suspects[0].infrastructure


def test_left_behind() -> None:
    """All wait, one of them five steps behind: named, but not acted on by that alone."""
    behind = rank(1, process(ALL_REDUCE), step=15)
    verdict = judge(repeated(*with_peers(behind)))
    assert named(verdict) == [("n1", (1,))]
    assert not verdict.corroborated
