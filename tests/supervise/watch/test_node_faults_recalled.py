"""What is remembered of faults over a restart of the supervisor: its agents then send all that their nodes reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from supervised import World

from slurm_robust.core.model import Signal, SignalKind
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.policy.job.node_faults import MILD_WITHIN_S, FaultMemory, FaultMove, belongs
from slurm_robust.supervise.agent.messages import NodeFindings
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.reported.node_reports import NodeFaults

NODES = ("n1", "n2", "n3", "n4")
DAY_S = 86_400.0
NOW_S = 20 * DAY_S


class Silent(IncidentFolder):
    """A story that nobody reads."""

    def __init__(self) -> None:
        """It is nowhere."""

    def log_event(self, *_: object, **__: object) -> None:
        """Nothing is written."""


class Run:
    """One run of the supervisor after the other."""

    def __init__(self) -> None:
        self.memory = FaultMemory()
        self.findings: list[tuple[str, NodeFinding]] = []
        self.starts()

    def starts(self) -> None:
        """The supervisor is started, and the agents send what they have."""
        self.faults = NodeFaults()
        self.faults.remember(self.memory, self.keep)
        for node, finding in self.findings:
            self.faults.take(NodeFindings(node, (finding,)), NOW_S)
        self.faults.pass_on([], Silent())

    def keep(self, memory: FaultMemory) -> None:
        """It is written, and read again."""
        self.memory = memory

    def finds(self, node: str, urgency: str, at_s: float, code: int = 79) -> None:
        """A node reports a fault."""
        finding = NodeFinding(len(self.findings) + 1, at_s, "kmsg", "xid", urgency, f"XID {code}", (), "", code)
        self.findings.append((node, finding))
        self.faults.take(NodeFindings(node, (finding,)), NOW_S)
        self.faults.pass_on([], Silent())

    def announces(self) -> None:
        """The storm that there is."""
        storm = self.faults.faulty(NODES, NODES).storm
        assert self.faults.is_news(storm)
        self.faults.announced(storm)


def test_an_announced_storm_is_no_nodes_fault_after_a_restart() -> None:
    """Also where some of its nodes are no more among the job's; a later fault of the sort is news."""
    run = Run()
    for late_s, node in enumerate(NODES[:3]):
        run.finds(node, "now", NOW_S - 10 * DAY_S + 50 * late_s)
    run.announces()
    run.starts()
    assert run.faults.faulty(NODES[2:], NODES[2:]).all == {}
    run.finds("n4", "now", NOW_S - 9 * DAY_S)
    assert list(run.faults.faulty(NODES[2:], NODES[2:]).leave_now) == ["n4"]


def test_a_fault_that_was_handled_is_no_news_after_a_restart() -> None:
    """No attempt starts there all the same, and the node's next fault is news."""
    run = Run()
    run.finds("n1", "now", NOW_S - 10 * DAY_S)
    run.finds("n2", "now", NOW_S - 9 * DAY_S)
    assert run.faults.unhandled("n1")
    run.faults.handled(["n1"])
    run.starts()
    assert [node for node in NODES if run.faults.unhandled(node)] == ["n2"]
    assert list(run.faults.faulty(NODES, NODES).leave_now) == ["n1", "n2"]
    run.finds("n1", "now", NOW_S - 8 * DAY_S)
    assert run.faults.unhandled("n1")


def test_a_node_that_stays_is_announced_once_a_day_over_restarts() -> None:
    """The job was moved often enough for mild faults."""
    run = Run()
    run.faults.moved([FaultMove(NOW_S - 60 * n, f"x{n}", "at_next_checkpoint", "disks", n) for n in range(1, 4)])
    run.finds("n1", "at_next_checkpoint", NOW_S)
    assert list(run.faults.staying(NODES, NODES, NOW_S)) == ["n1"]
    run.faults.handled(["n1"])
    assert run.faults.staying(NODES, NODES, NOW_S) == {}
    run.starts()
    assert run.faults.staying(NODES, NODES, NOW_S) == {}
    assert list(run.faults.staying(NODES, NODES, NOW_S + MILD_WITHIN_S + 1)) == ["n1"]


def test_a_second_storm_of_another_sort_is_news_though_it_follows_within_a_minute() -> None:
    """Links flap on three of four nodes; half a minute later their GPUs are lost."""
    run = Run()
    for node in NODES[:3]:
        run.finds(node, "if_repeated", NOW_S - 100, code=1)
    run.announces()
    for node in NODES[:3]:
        run.finds(node, "now", NOW_S - 70)
    run.announces()
    run.finds("n4", "now", NOW_S - 20)
    found = run.faults.faulty(NODES, NODES)
    assert (found.all, found.storm) == ({}, ()), "it came late, and is announced"


def test_a_storm_is_remembered_by_its_sorts_and_times() -> None:
    """However many nodes and however long: what came with it is known as before."""
    one = Signal(SignalKind.NODE_FAULT, NOW_S, "kmsg", "XID 79", "n1", evidence={"kind": "xid", "urgency": "now"})
    storm = [dataclasses.replace(one, at_s=NOW_S + second) for second in (*range(0, 400, 5), 520)]
    kept = [known.signal for known in FaultMemory().announced(storm).storms]
    assert len(kept) < 10
    for second in range(-100, 700):
        late = dataclasses.replace(one, at_s=NOW_S + second)
        assert belongs(late, kept) == belongs(late, storm), second


def test_it_is_kept_with_the_training(tmp_path: Path) -> None:
    """In the job's folder, for the next run of the supervisor."""
    first = World(tmp_path, command="python train.py")
    LineageStore(first.session)
    for node in ("n1", "n2"):
        finding = NodeFinding(1, first.clock.at_s, "kmsg", "xid", "now", "XID 79", (), "", 79)
        first.session.receive(NodeFindings(node, (finding,)))
    faults = first.session.node_faults
    faults.pass_on([], first.session.folder)
    faults.announced(faults.faulty(("n1", "n2"), ("n1", "n2")).storm)
    faults.handled(["n1"])
    second = World(tmp_path, command="python train.py")
    second.job.claim = first.job.claim
    store = LineageStore(second.session)
    assert [(storm.kind, storm.code) for storm in store.lineage.faults.storms] == [("xid", 79)]
    second.session.receive(NodeFindings("n2", (finding,)))
    second.session.node_faults.pass_on([], second.session.folder)
    assert second.session.node_faults.faulty(("n2",), ("n2",)).all == {}
