"""How long faults are kept, and how often they are weighed: jobs run for weeks, and are polled five times a second."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from supervised import World

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.policy.job import node_faults as policy
from slurm_robust.supervise.agent.messages import NodeFindings
from slurm_robust.supervise.reported.node_reports import NodeFaults

KEPT_S = policy.REPEAT_WITHIN_S + policy.AT_ONCE_S
NODES = tuple(f"n{n}" for n in range(1, 7))


class Job:
    """The faults of a job's nodes, as they come."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, command="python train.py", nodes=NODES)
        self.faults: NodeFaults = self.world.session.node_faults
        self.seq = 0

    def finds(self, node: str, urgency: str = "if_repeated", ago_s: float = 0.0, **more: str) -> None:
        """A node reports a fault of so long ago."""
        self.seq += 1
        made = {"source": "kmsg", "kind": "link", "text": "link down", "port": "mlx5_0/1", **more}
        finding = NodeFinding(**made, seq=self.seq, at_s=self.world.clock.at_s - ago_s, urgency=urgency)
        self.faults.take(NodeFindings(node, (finding,)), self.world.clock.at_s)
        self.faults.pass_on([], self.world.session.folder)

    def waits(self, seconds: float) -> None:
        """Time goes by."""
        self.world.clock.at_s += seconds
        self.faults.forget(self.world.clock.at_s)


def test_one_flap_is_forgotten_once_nothing_can_follow_from_it(tmp_path: Path) -> None:
    """Neither a repetition nor a storm. Two are a reason not to start on that node again, and so are other faults."""
    job = Job(tmp_path)
    for node in ("n1", "n2"):
        job.finds(node)
    job.finds("n3", "now")
    job.finds("n4", "at_next_checkpoint")
    job.waits(60)
    job.finds("n2")
    job.waits(KEPT_S - 61)
    assert [s.node for s in job.faults.of(NODES)] == ["n1", "n2", "n3", "n4", "n2"]
    job.waits(100)
    assert [s.node for s in job.faults.of(NODES)] == ["n2", "n3", "n4", "n2"]
    assert "for the second time in 60 s" in job.faults.faulty(NODES, NODES).leave_now["n2"]


def test_what_is_old_when_it_comes_is_kept_as_long(tmp_path: Path) -> None:
    """By an agent that was silent, or by a node whose clock is behind."""
    job = Job(tmp_path)
    job.finds("n1", ago_s=3000)
    job.waits(100)
    job.finds("n1", ago_s=3000)
    assert job.faults.faulty(NODES, NODES).leave_now
    assert job.faults.unhandled("n1")


def test_faults_are_weighed_once_for_each_that_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not in each turn; for other nodes anew."""
    weighed: list[int] = []
    weigh = policy.weigh

    def counts(*args: object) -> policy.FaultyNodes:
        weighed.append(1)
        return weigh(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(policy, "weigh", counts)
    job = Job(tmp_path)
    job.finds("n1", "at_next_checkpoint")
    for _ in range(5):
        assert job.faults.faulty(NODES, NODES).leave_later
        assert job.faults.faulty(NODES, NODES[:2]).leave_later
    assert len(weighed) == 2
    job.finds("n2", "now")
    assert job.faults.faulty(NODES, NODES).leave_now
    assert len(weighed) == 3
    now_s = job.world.clock.at_s
    moves = [policy.FaultMove(now_s, f"x{n}", "at_next_checkpoint", "link") for n in range(2)]
    job.faults.moved(moves)
    assert job.faults.faulty(NODES, NODES).stays
    job.finds("n1", "note")
    assert not job.faults.faulty(NODES, NODES).stays


@pytest.mark.parametrize("at_s", [math.nan, math.inf, -math.inf, -1e300, -1.0, 1e300])
def test_a_time_that_makes_no_sense_is_now(tmp_path: Path, at_s: float) -> None:
    """It is written into the story, and remembered with the training."""
    job = Job(tmp_path)
    now_s = job.world.clock.at_s
    job.faults.take(NodeFindings("n1", (NodeFinding(1, at_s, "kmsg", "xid", "now", "XID 79"),)), now_s)
    job.faults.pass_on([], job.world.session.folder)
    assert [signal.at_s for signal in job.faults.of(NODES)] == [now_s]
