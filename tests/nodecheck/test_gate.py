from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from slurm_robust.config import Config, NodecheckConfig, SlurmConfig
from slurm_robust.model import Mode
from slurm_robust.nodecheck import gate
from slurm_robust.nodecheck.finding import Finding, Report, Result, Status
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmTimeoutError

NOW_S = 1_763_686_000.0
LEAVE = "rack 12 [[srobust-leave until=1763686060]]"
IDLE = Node("n1", "IDLE", comment=LEAVE)


def report(status: Status = Status.FAIL, stage: str = "prolog") -> Report:
    """A report with one finding."""
    return Report("n1", stage, (Result("xid", Finding(status, "xid_79", "XID 79 on GPU 0000:9b:00")),))


DRAIN = "srobust: XID 79 on GPU 0000:9b:00"


@pytest.mark.parametrize(
    ("stage", "mode", "node", "does", "words"),
    [
        ("prolog", Mode.ACT, IDLE, (True, DRAIN), "draining n1"),
        ("epilog", Mode.ACT, IDLE, (True, DRAIN), "draining n1"),
        ("prolog", Mode.OBSERVE, IDLE, (False, ""), "observe: would drain n1"),
        ("prolog", Mode.ACT, None, (False, ""), "knows no such node"),
        ("prolog", Mode.ACT, Node("n1", "IDLE"), (False, ""), "no leave"),
        ("prolog", Mode.ACT, Node("n1", "IDLE", comment="[[srobust-leave until=1]]"), (False, ""), "no leave"),
        # nhc#134 and its kind: what a person wrote stays; a node drained already gets no new job either.
        ("prolog", Mode.ACT, Node("n1", "IDLE", frozenset({"DRAIN"}), "bad fan", comment=LEAVE), (True, ""), "bad fan"),
        (
            "epilog",
            Mode.ACT,
            Node("n1", "IDLE", frozenset({"DRAIN"}), "bad fan", comment=LEAVE),
            (False, ""),
            "bad fan",
        ),
        (
            "prolog",
            Mode.ACT,
            Node("n1", "IDLE", frozenset({"DRAIN"}), "srobust: x", comment=LEAVE),
            (True, ""),
            "already",
        ),
        ("prolog", Mode.ACT, Node("n1", "IDLE", reason="watch this one", comment=LEAVE), (False, ""), "somebody's"),
        ("prolog", Mode.ACT, Node("n1", "IDLE", reason="srobust: old", comment=LEAVE), (True, DRAIN), "draining n1"),
    ],
)
def test_decision(stage: str, mode: Mode, node: Node | None, does: tuple[bool, str], words: str) -> None:
    """Only with leave, only in act mode, never over a foreign reason."""
    decision = gate.decide(report(stage=stage), mode, node, NOW_S)
    assert (decision.refuse, decision.drain_reason) == does
    assert words in decision.line


@pytest.mark.parametrize(("stage", "ends"), [("prolog", " [job 4711]"), ("epilog", "9b:00"), ("periodic", "9b:00")])
def test_reason_names_the_job_that_a_prolog_puts_back(stage: str, ends: str) -> None:
    """Slurm may hold that job: the daemon must know why. However long the sentence, the name stays whole."""
    decision = gate.decide(report(stage=stage), Mode.ACT, IDLE, NOW_S, 4711)
    assert decision.drain_reason.startswith(DRAIN)
    assert decision.drain_reason.endswith(ends)
    long = replace(report(stage="prolog"), results=report(stage="prolog").results * 30)
    reason = gate.decide(long, Mode.ACT, IDLE, NOW_S, 4711).drain_reason
    assert len(reason) <= 200
    assert reason.endswith("… [job 4711]")


class Slurm:
    """Stands in for slurmctld where only our own side is asked about; the real one is in tests/prolog."""

    def __init__(self, node: Node | None = None, error: Exception | None = None) -> None:
        self.answer, self.error, self.asked, self.drained = node, error, 0, []  # type: tuple[Any, Any, int, list[Any]]

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

    def drain(self, nodes: str, reason: str) -> None:
        """One drain."""
        self.drained.append((nodes, reason))


ACT = Config(mode=Mode.ACT, nodecheck=NodecheckConfig(leave_timeout_s=3.0))


def fresh() -> Node:
    """A node with leave for the next minute."""
    return Node("n1", "IDLE", comment=f"[[srobust-leave until={int(time.time()) + 60}]]")


def test_slurm_is_asked_only_for_an_unfit_node() -> None:
    """Fit and unknown cost no call; unknown says a line, fit says none."""
    slurm, lines = Slurm(fresh()), list[str]()
    assert gate.act(report(Status.PASS), ACT, lines.append, slurm.connect) == 0
    assert lines == []
    assert gate.act(report(Status.UNKNOWN), ACT, lines.append, slurm.connect) == 0
    assert gate.act(report(), Config(), lines.append, slurm.connect) == 0
    assert slurm.asked == 0
    assert len(lines) == 2


def test_with_leave_the_node_is_drained_before_the_exit() -> None:
    """Drained with our reason, and the script is told to exit 1."""
    slurm, lines = Slurm(fresh()), list[str]()
    assert gate.act(report(), ACT, lines.append, slurm.connect) == gate.EXIT_REFUSE
    assert slurm.drained == [("n1", DRAIN)]


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
