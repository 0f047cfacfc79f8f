from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from slurm_robust.config.site import BreakerConfig, Config, NodecheckConfig, SlurmConfig
from slurm_robust.core.model import Mode
from slurm_robust.nodecheck.engine.finding import Finding, NodeReport, Result, Status
from slurm_robust.nodecheck.stages import gate
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmTimeoutError

NOW_S = 1_763_686_000.0
PERMIT = "rack 12 [[srobust-drain-permit until=1763686060]]"
IDLE = Node("n1", "IDLE", comment=PERMIT)


def report(status: Status = Status.FAIL, stage: str = "prolog") -> NodeReport:
    """A report with one finding."""
    return NodeReport("n1", stage, (Result("xid", Finding(status, "xid_79", "XID 79 on GPU 0000:9b:00")),))


DRAIN = "srobust: XID 79 on GPU 0000:9b:00"


@pytest.mark.parametrize(
    ("stage", "mode", "node", "does", "words"),
    [
        ("prolog", Mode.ACT, IDLE, (True, DRAIN), "draining n1"),
        ("epilog", Mode.ACT, IDLE, (True, DRAIN), "draining n1"),
        ("prolog", Mode.OBSERVE, IDLE, (False, ""), "observe: would drain n1"),
        ("prolog", Mode.ACT, None, (False, ""), "does not know this node"),
        ("prolog", Mode.ACT, Node("n1", "IDLE"), (False, ""), "no drain permit"),
        (
            "prolog",
            Mode.ACT,
            Node("n1", "IDLE", comment="[[srobust-drain-permit until=1]]"),
            (False, ""),
            "no drain permit",
        ),
        # nhc#134 and its kind: what a person wrote stays; a node drained already gets no new job either.
        (
            "prolog",
            Mode.ACT,
            Node("n1", "IDLE", frozenset({"DRAIN"}), "bad fan", comment=PERMIT),
            (True, ""),
            "bad fan",
        ),
        (
            "epilog",
            Mode.ACT,
            Node("n1", "IDLE", frozenset({"DRAIN"}), "bad fan", comment=PERMIT),
            (False, ""),
            "bad fan",
        ),
        (
            "prolog",
            Mode.ACT,
            Node("n1", "IDLE", frozenset({"DRAIN"}), "srobust: x", comment=PERMIT),
            (True, ""),
            "already",
        ),
        # Slurm 24.11 leaves a reason where it stands when the node is resumed: it says nothing of a node in service.
        ("prolog", Mode.ACT, Node("n1", "IDLE", reason="bad fan", comment=PERMIT), (True, DRAIN), "draining n1"),
        ("periodic", Mode.ACT, Node("n1", "MIXED", reason="bad fan", comment=PERMIT), (True, DRAIN), "draining n1"),
        ("periodic", Mode.ACT, Node("n1", "DOWN", reason="bad fan", comment=PERMIT), (False, ""), "bad fan"),
        (
            "epilog",
            Mode.ACT,
            Node("n1", "IDLE", frozenset({"FAIL"}), "bad fan", comment=PERMIT),
            (False, ""),
            "bad fan",
        ),
        ("prolog", Mode.ACT, Node("n1", "IDLE", reason="srobust: old", comment=PERMIT), (True, DRAIN), "draining n1"),
        # nhc#159: slurmd's first health check runs before the node has registered; the next look decides.
        ("periodic", Mode.ACT, IDLE, (True, DRAIN), "draining n1"),
        ("periodic", Mode.ACT, Node("n1", "UNKNOWN", comment=PERMIT), (False, ""), "has not registered"),
        (
            "periodic",
            Mode.ACT,
            Node("n1", "IDLE", frozenset({"NOT_RESPONDING"}), comment=PERMIT),
            (False, ""),
            "has not registered",
        ),
    ],
)
def test_decision(stage: str, mode: Mode, node: Node | None, does: tuple[bool, str], words: str) -> None:
    """Only with a permit, only in act mode, never over what took the node out already."""
    decision = gate.decide(report(stage=stage), mode, node, NOW_S)
    assert (decision.refuse, decision.drain_reason) == does
    assert words in decision.line


@pytest.mark.parametrize(("stage", "ends"), [("prolog", " [job 4711]"), ("epilog", "9b:00"), ("periodic", "9b:00")])
def test_reason_names_the_job_that_a_prolog_puts_back(stage: str, ends: str) -> None:
    """Slurm may hold that job: the daemon must know why. However long the sentence, the name stays whole."""
    decision = gate.decide(report(stage=stage), Mode.ACT, IDLE, NOW_S, 4711)
    assert decision.drain_reason.startswith(DRAIN)
    assert decision.drain_reason.endswith(ends)
    (one,) = report(stage="prolog").results
    many = [replace(one, finding=replace(one.finding, sentence=f"{one.finding.sentence} {n}")) for n in range(30)]
    long = replace(report(stage="prolog"), results=tuple(many))
    reason = gate.decide(long, Mode.ACT, IDLE, NOW_S, 4711).drain_reason
    assert len(reason) <= 200
    assert reason.endswith("… [job 4711]")


class Slurm:
    """Stands in for slurmctld where only our own side is asked about; the real one is in tests/prolog."""

    def __init__(self, node: Node | None = None, error: Exception | None = None) -> None:
        self.answer, self.error, self.asked, self.drained = node, error, 0, []  # type: tuple[Any, Any, int, list[Any]]
        self.others: list[Node] = []

    def connect(self, config: SlurmConfig) -> Any:
        """The client; asks for the deadline as the real one does."""
        assert 0 < config.timeout_s <= 3.0
        return self

    def node(self, name: str) -> Node | None:
        """One read."""
        self.asked += 1
        if self.error:
            raise self.error
        return self.answer

    def nodes(self) -> list[Node]:
        """The whole list, where it is asked for."""
        return [self.answer, *self.others] if self.answer else self.others

    def drain(self, nodes: str, reason: str) -> None:
        """One drain."""
        self.drained.append((nodes, reason))


ACT = Config(mode=Mode.ACT, nodecheck=NodecheckConfig(permit_timeout_s=3.0))


def fresh() -> Node:
    """A node with a permit for the next minute."""
    return Node("n1", "IDLE", comment=f"[[srobust-drain-permit until={int(time.time()) + 60}]]")


def test_slurm_is_asked_only_for_an_unfit_node() -> None:
    """Fit and unknown cost no call; unknown says a line, fit says none."""
    slurm, lines = Slurm(fresh()), list[str]()
    assert gate.act(report(Status.PASS), ACT, lines.append, slurm.connect) == 0
    assert lines == []
    assert gate.act(report(Status.UNKNOWN), ACT, lines.append, slurm.connect) == 0
    assert gate.act(report(), Config(), lines.append, slurm.connect) == 0
    assert slurm.asked == 0
    assert len(lines) == 2


def test_with_a_permit_the_node_is_drained_before_the_exit() -> None:
    """Drained with our reason, and the script is told to exit 1."""
    slurm, lines = Slurm(fresh()), list[str]()
    assert gate.act(report(), ACT, lines.append, slurm.connect) == gate.EXIT_REFUSE
    assert slurm.drained == [("n1", DRAIN)]


def out(number: int) -> Node:
    """A node that we took out."""
    return Node(f"m{number}", "IDLE", frozenset({"DRAIN"}), reason="srobust: XID 79")


@pytest.mark.parametrize(("others", "drains"), [(0, 1), (1, 1), (2, 0), (5, 0)])
def test_many_at_once_count_before_they_drain(others: int, drains: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad driver roll-out: all have a permit, and the third finds that two are out; drains of others do not count."""
    monkeypatch.setattr(gate, "SPREAD_S", 0.01)
    node = Node("n1", "IDLE", comment=f"[[srobust-drain-permit until={int(time.time()) + 60} most=2]]")
    slurm, lines = Slurm(node), list[str]()
    slurm.others = [out(i) for i in range(others)] + [Node("p", "IDLE", frozenset({"DRAIN"}), reason="fan")]
    assert gate.act(report(), ACT, lines.append, slurm.connect) == (gate.EXIT_REFUSE if drains else 0)
    assert len(slurm.drained) == drains
    assert drains or "are drained by us" in lines[0]


@pytest.mark.parametrize(
    ("comment", "alone", "does"),
    [
        ("", True, True),
        ("rack 12", True, True),
        ("", False, False),
        # A daemon was here: dead, refusing or of another version, it is not gone around.
        ("[[srobust-drain-permit until=1]]", True, False),
        ("rack 12 [[srobust-no-drain-permit]]", True, False),
        ("[[srobust-later]]", True, False),
    ],
)
def test_alone_only_where_no_daemon_has_been(comment: str, alone: bool, does: bool) -> None:
    """`nodecheck.without_daemon: drain` is for sites without srobustd."""
    decision = gate.decide(report(), Mode.ACT, Node("n1", "IDLE", comment=comment), NOW_S, alone=alone)
    assert decision.refuse is does
    assert (decision.drain_reason == DRAIN) is does
    assert does or "no drain permit" in decision.line


def test_alone_respects_what_anybody_respects() -> None:
    """Observe mode, a person's drain, a node that has not registered."""
    for mode, stage, node in (
        (Mode.OBSERVE, "prolog", Node("n1", "IDLE")),
        (Mode.ACT, "prolog", Node("n1", "DOWN", comment="[[srobust-later]]")),
        (Mode.ACT, "epilog", Node("n1", "IDLE", frozenset({"DRAIN"}), "bad fan")),
        (Mode.ACT, "periodic", Node("n1", "UNKNOWN")),
    ):
        decision = gate.decide(report(stage=stage), mode, node, NOW_S, alone=True)
        assert (decision.refuse, decision.drain_reason) == (False, "")


@pytest.mark.parametrize(
    ("breaker", "others", "why"),
    [
        (BreakerConfig(max_drains=2, max_partition_share=1.0), [out(1)], ""),
        (BreakerConfig(max_drains=2, max_partition_share=1.0), [out(1), out(2)], "breaker.max_drains is 2"),
        # An hour ago is another day; drains of persons are theirs.
        (BreakerConfig(max_drains=1, max_partition_share=1.0), [replace(out(1), reason_at_s=1)], ""),
        (BreakerConfig(max_drains=1, max_partition_share=1.0), [replace(out(1), reason="fan")], ""),
        # However long ago, a share of a partition is a share.
        (BreakerConfig(max_drains=9, max_partition_share=0.5), [replace(out(1), reason_at_s=1)], ""),
        (
            BreakerConfig(max_drains=9, max_partition_share=0.5),
            [out(1), replace(out(2), reason_at_s=1)],
            "of partition",
        ),
        (BreakerConfig(max_drains=0), [], "breaker.max_drains is 0"),
    ],
)
def test_alone_the_breaker_s_bounds_hold(
    breaker: BreakerConfig, others: list[Node], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted over what Slurm shows, since nobody else does; past them the job starts, and the log says why."""
    monkeypatch.setattr(gate, "SPREAD_S", 0.01)
    slurm, lines = Slurm(Node("n1", "IDLE", partitions=("main",))), list[str]()
    fit = [Node(f"f{i}", "IDLE", partitions=("main",)) for i in range(3 - len(others))]
    slurm.others = [*(replace(node, partitions=("main",)) for node in others), *fit]
    config = without_daemon(breaker)
    assert gate.act(report(), config, lines.append, slurm.connect) == (0 if why else gate.EXIT_REFUSE)
    assert len(slurm.drained) == (0 if why else 1)
    assert why in lines[0]


def without_daemon(breaker: BreakerConfig) -> Config:
    """A site without srobustd that drains."""
    part = NodecheckConfig(permit_timeout_s=3.0, without_daemon="drain")
    return Config(mode=Mode.ACT, nodecheck=part, breaker=breaker)


def test_a_drain_by_a_person_meanwhile_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second read decides."""
    monkeypatch.setattr(gate, "SPREAD_S", 0.01)
    permit = f"[[srobust-drain-permit until={int(time.time()) + 60} most=2]]"
    slurm = Slurm(Node("n1", "IDLE", comment=permit))
    monkeypatch.setattr(slurm, "nodes", lambda: [Node("n1", "IDLE", frozenset({"DRAIN"}), "fan", comment=permit)])
    assert gate.act(report(), ACT, lambda line: None, slurm.connect) == gate.EXIT_REFUSE
    assert slurm.drained == []


def test_a_health_check_drains_and_exits_0() -> None:
    """Its exit code is ignored by slurmd; ours is 0 all the same."""
    slurm = Slurm(fresh())
    assert gate.act(report(stage="periodic"), ACT, lambda line: None, slurm.connect) == 0
    assert slurm.drained == [("n1", DRAIN)]


@pytest.mark.parametrize("error", [SlurmTimeoutError("scontrol did not come back"), OSError("no"), ValueError("?")])
def test_no_answer_of_slurm_lets_the_job_start(error: Exception) -> None:
    """nhc#161: a hung scontrol gave a mass drain. Here it gives a line in the log."""
    slurm, lines = Slurm(error=error), list[str]()
    assert gate.act(report(), ACT, lines.append, slurm.connect) == 0
    assert slurm.drained == []
    assert str(error) in lines[0]


def test_the_comment_of_a_recheck_says_the_verdict() -> None:
    """What the daemon reads from the recheck job."""
    assert gate.comment_of(report()) == "srobust-check: unfit: XID 79 on GPU 0000:9b:00"
    assert gate.comment_of(report(Status.PASS)) == "srobust-check: fit: all checks passed"


@pytest.mark.parametrize(
    ("env", "address"),
    [
        ({"SLURM_JOB_ID": "12"}, "12"),
        ({"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}, "12_3"),
    ],
)
def test_exactly_this_job_is_told(env: dict[str, str], address: str) -> None:
    """One task of an array is addressed as such: the bare id could mean all of them."""
    told = []

    class Client:
        """Takes the comment."""

        def update_job(self, job: Any, *, comment: str) -> None:
            """One update."""
            told.append((job.address, comment))

    assert gate.tell_job(report(), ACT, env, lambda config: Client()) == ""  # type: ignore[arg-type,return-value]
    assert told == [(address, "srobust-check: unfit: XID 79 on GPU 0000:9b:00")]
    assert "SLURM_JOB_ID" in gate.tell_job(report(), ACT, {})
