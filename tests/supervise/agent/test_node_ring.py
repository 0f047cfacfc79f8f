"""The agent reads the ring of node findings: what is new, what concerns this job, what is not believed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from agent_stage import AgentStage

from slurm_robust.marks import node_findings
from slurm_robust.marks.node_findings import NodeFinding, encode
from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.agent.messages import FromAgent, NodeFindings, RankFound
from slurm_robust.supervise.agent.node_ring import NodeRing
from slurm_robust.supervise.agent.ranks import Rank, StepProcess, gpus_of

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="root owns the ring")


def finding(seq: int, at_s: float = 100.0, **more: Any) -> NodeFinding:
    """A finding of the service."""
    return NodeFinding(
        **{"source": "kmsg", "kind": "xid", "urgency": "now", "text": f"f{seq}", **more}, seq=seq, at_s=at_s
    )


def rank(*gpus: int, known: bool = True) -> Rank:
    """A rank that was given these GPUs."""
    process = StepProcess(7, 1, 0, "python", 0, 0, "0", 1, 1, "", gpus=gpus if known else None)
    return Rank(0, "0", 1, process, (process,))


class Clock(SystemClock):
    """Its time of day stands until the test moves it."""

    at_s = 1000.0

    def now_s(self) -> float:
        """Wall time."""
        return self.at_s


class Ring:
    """A node's folder, and what an agent sends of it.

    Attributes:
        sent: The messages.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "n1"
        self.folder.mkdir(mode=0o755)
        self.sent: list[FromAgent] = []
        self.clock = Clock()
        self.reader = NodeRing("n1", str(folder / "%n"), 50.0, self.sent.append, clock=self.clock)

    def write(self, *findings: NodeFinding, boot: str | None = None) -> None:
        """Write the ring as the service does."""
        path = self.folder / "new"
        path.write_bytes(encode(findings, node_findings.boot_id() if boot is None else boot))
        path.chmod(0o644)
        path.rename(self.folder / node_findings.FILE_NAME)

    def told(self, *ranks: Rank) -> list[int]:
        """The numbers of the findings that a poll sends."""
        self.sent.clear()
        self.reader.poll(ranks)
        return [f.seq for message in self.sent if isinstance(message, NodeFindings) for f in message.findings]

    @property
    def messages(self) -> list[NodeFindings]:
        """Those of the last poll."""
        return [message for message in self.sent if isinstance(message, NodeFindings)]

    @property
    def problems(self) -> list[str]:
        """What the last poll said of a ring that is not believed."""
        return [m.problem for m in self.sent if isinstance(m, NodeFindings) and m.problem]


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    """An empty one."""
    return Ring(tmp_path)


def test_each_new_finding_is_sent_once(ring: Ring) -> None:
    """Those that are older than the agent belong to earlier jobs."""
    assert ring.told(rank(0)) == []
    ring.write(finding(1, 10.0), finding(2, 60.0))
    assert ring.told() == [2]
    assert ring.told() == []
    ring.write(finding(1, 10.0), finding(2, 60.0), finding(3, 20.0), finding(4, 70.0))
    assert ring.told() == [3, 4], "numbers count once they are known: a clock may jump"


def test_a_service_that_has_lost_its_numbers_is_still_heard(ring: Ring) -> None:
    """Its file was removed: it counts from 1 again."""
    ring.write(finding(9, 60.0))
    assert ring.told() == [9]
    ring.write(finding(1, 90.0))
    assert ring.told() == [1]


def test_a_file_that_has_not_changed_is_not_read(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick costs one stat."""
    ring.write(finding(1))
    ring.told()
    monkeypatch.setattr(node_findings, "read", lambda *_: pytest.fail("read again"))
    assert ring.told() == []


def test_only_gpus_of_this_job_count(ring: Ring) -> None:
    """A fault of the whole node always counts; before a rank is found, those of a GPU wait."""
    ring.write(finding(1, gpus=(0,)), finding(2, gpus=(3,)), finding(3, kind="disks"))
    assert ring.told() == [1, 2, 3]
    assert [(m.unused, len(m.findings)) for m in ring.messages] == [(True, 2), (False, 1)]
    assert ring.told(rank(2, 3)) == [2]
    ring.write(finding(4, gpus=(3,)), finding(5, gpus=(0, 1)))
    assert ring.told() == [4], "the rank that the lost GPU has killed"


def test_a_fault_waits_an_hour_for_a_rank_that_uses_its_gpu(ring: Ring) -> None:
    """One of a GPU that a rank was not given may be its own, until it has opened one; then it is too old."""
    ring.write(finding(1, 900.0, gpus=(3,)))
    assert ring.told(rank(0)) == []
    assert ring.told(rank(3)) == [1]
    ring.write(finding(2, 950.0, gpus=(5,)))
    assert ring.told(rank(0)) == []
    ring.clock.at_s += 3700
    assert ring.told(rank(0)) == []
    assert ring.told(rank(5)) == []


def test_a_ring_that_others_could_have_written_is_reported_once(ring: Ring) -> None:
    """Another owner, then a link, then one that is to be believed again."""
    ring.write(finding(1))
    path = ring.folder / node_findings.FILE_NAME
    os.chown(path, 1234, 1234)
    assert ring.told() == []
    assert ring.problems == [f"{path}: owned by user 1234"]
    path.unlink()
    path.symlink_to(ring.folder / "elsewhere")
    assert ring.told() == []
    assert ring.problems == []
    path.unlink()
    ring.write(finding(1))
    assert ring.told() == [1]


@pytest.mark.parametrize("data", [b"", b"\x00" * 999, b"{}\n{}\n", b'{"v": 2, "boot": "x"}\n'])
def test_garbage_says_nothing(ring: Ring, data: bytes) -> None:
    """Neither a finding nor a doubt about who wrote it."""
    (ring.folder / node_findings.FILE_NAME).write_bytes(data)
    assert ring.told() == []
    assert ring.problems == []


def test_findings_of_another_boot_are_old(ring: Ring) -> None:
    """The GPU has been reset with its machine."""
    ring.write(finding(1), boot="another")
    assert ring.told() == []


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({}, None),
        ({"SLURM_STEP_GPUS": "4,5", "SLURM_JOB_GPUS": "4,5,6,7", "CUDA_VISIBLE_DEVICES": "0,1"}, (4, 5)),
        ({"SLURM_JOB_GPUS": "6", "CUDA_VISIBLE_DEVICES": "0"}, (6,)),
        ({"CUDA_VISIBLE_DEVICES": "1,2"}, (1, 2)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106"}, None),
        ({"SLURM_STEP_GPUS": "0:1"}, None),
    ],
)
def test_which_gpus_a_rank_was_given(environment: dict[str, str], gpus: tuple[int, ...] | None) -> None:
    """Slurm's numbers are the node's; what it counts from 0 inside a cgroup comes last."""
    assert gpus_of(environment) == gpus


def test_the_agent_sends_what_its_node_finds(stage: AgentStage, tmp_path: Path) -> None:
    """A real agent, a real rank with GPU 3, and its ring."""
    ring = Ring(tmp_path)
    stage.victim(0, SLURM_STEP_GPUS="3")
    stage.start_agent(ring=str(tmp_path / "%n"))
    stage.receive(RankFound)
    now_s = time.time() + 1  # the agent believes no clock that is a minute ahead
    ring.write(finding(1, now_s, gpus=(0,)), finding(2, now_s, gpus=(3,), code=79), finding(3, 9e9, gpus=(3,), code=48))
    message = stage.receive(NodeFindings)
    assert [(f.seq, f.code) for f in message.findings] == [(2, 79)]


def test_a_service_that_has_lost_its_numbers_loses_no_fault(ring: Ring) -> None:
    """Its first number may be the last one that was read: then the time says that it is news."""
    ring.write(finding(1, 60.0))
    assert ring.told(rank(0)) == [1]
    ring.write(finding(1, 500.0, code=79))
    assert ring.told(rank(0)) == [1]
    ring.write(finding(1, 500.0, code=79))
    assert ring.told(rank(0)) == []
