"""Which drains of a job's nodes are taken, what they move, and what is taken back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervised import World

from slurm_robust.core.model import JobRef, Signal, SignalKind
from slurm_robust.slurm.errors import SlurmUnavailableError
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.watch import drain_watch

NODES = ("n1", "n2")
OURS = "srobust: gpu_lost on GPU 3"


class Job:
    """A job on two nodes of eight GPUs, all of which it has."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.world = world = World(folder, command="python train.py", nodes=NODES, **more)
        world.job.info = replace(world.job.info, start_at_s=int(world.clock.at_s) - 3600)
        for node in NODES:
            self.shows(node, gres="gpu:8", cpus=64)
        self.gives(8)
        self.signals: list[Signal] = []

    def gives(self, gpus: int) -> None:
        """The job has so many GPUs of each node."""
        self.world.slurm.gpus[self.world.job.job_id] = dict.fromkeys(NODES, frozenset(range(gpus)))

    def shows(self, node: str, **more: Any) -> None:
        """Slurm shows a node so."""
        nodes = self.world.slurm.state.nodes
        nodes[node] = replace(nodes[node], **more)

    def drains(self, node: str, reason: str = OURS, ago_s: float = 0) -> None:
        """It was drained so long ago, by slurmctld's clock."""
        at_s = int(self.world.clock.at_s - ago_s)
        self.shows(node, flags=frozenset({"DRAIN"}), reason=reason, reason_user="root", reason_at_s=at_s)

    def reads(self) -> dict[str, str]:
        """The nodes are read; the nodes to leave after the next checkpoint."""
        session = self.world.session
        drain_watch.take(session, drain_watch.read(session, NODES), NODES)
        session.node_faults.pass_on(self.signals, session.folder)
        return dict(session.node_faults.faulty(NODES, NODES).leave_later)


@pytest.mark.parametrize(("reason", "left"), [(OURS, {"n2"}), ("fans, bob", set())])
def test_a_node_that_is_drained_is_told_once(tmp_path: Path, reason: str, left: set[str]) -> None:
    """Ours waits for the checkpoint; a person wants the job to finish."""
    job = Job(tmp_path)
    job.drains("n2", reason)
    for _ in range(2):
        assert set(job.reads()) == left
    (signal,) = job.signals
    assert (signal.kind, signal.source, signal.node) == (SignalKind.NODE_FAULT, "slurm", "n2")
    assert reason in job.world.text("node-fault")


@pytest.mark.parametrize("reason", [OURS, "srobust: suspect of job 7"])
def test_our_drain_of_a_shared_node_moves_nothing(tmp_path: Path, reason: str) -> None:
    """Another job has the GPU, or is the suspect: a line in the story, and this job's agents tell what concerns it."""
    job = Job(tmp_path)
    job.gives(4)
    job.drains("n2", reason)
    assert job.reads() == {}
    assert "nothing is done about it" in job.world.text("node-fault")


@pytest.mark.parametrize(
    ("cpus", "job_id", "left"),
    [("64(x2)", 0, {"n2"}), ("64,64", 0, {"n2"}), ("64,32", 0, set()), ("64(x3)", 0, set()), ("64(x2)", 7, set())],
)
def test_without_gpus_all_cpus_are_the_whole_node(tmp_path: Path, cpus: str, job_id: int, left: set[str]) -> None:
    """As the job's own environment tells."""
    job = Job(tmp_path)
    for node in NODES:
        job.shows(node, gres="")
    number = str(job_id or job.world.job.job_id)
    job.world.session.environment = {"SLURM_JOB_ID": number, "SLURM_JOB_CPUS_PER_NODE": cpus}
    job.drains("n2", "srobust: /scratch is not mounted")
    assert set(job.reads()) == left


@pytest.mark.parametrize("junk", ["", "64(x2", "x", "64(x999999999)", ",", "64," * 10_000, "-1", "64(x0)"])
def test_an_environment_that_tells_nothing(tmp_path: Path, junk: str) -> None:
    """It moves nothing, and costs nothing."""
    job = Job(tmp_path)
    job.shows("n2", gres="")
    environment = {"SLURM_JOB_ID": str(job.world.job.job_id), "SLURM_JOB_CPUS_PER_NODE": junk}
    job.world.session.environment = environment
    job.drains("n2", "srobust: /scratch is not mounted")
    assert job.reads() == {}


def test_a_drain_that_is_undone_moves_nothing_any_more(tmp_path: Path) -> None:
    """A repair, or a person; and it is no evidence. Drained again, it counts again."""
    job = Job(tmp_path)
    job.drains("n2", ago_s=60)
    assert set(job.reads()) == {"n2"}
    job.shows("n2", flags=frozenset())
    assert job.reads() == {}
    assert job.signals == []
    assert "n2 is no longer drained" in job.world.text("note")
    job.reads()
    assert job.world.kinds.count("note") == 1
    job.drains("n2")
    assert set(job.reads()) == {"n2"}


def test_a_drain_is_not_lost_where_the_job_has_begun_another_attempt_or_slurmctlds_clock_is_behind(
    tmp_path: Path,
) -> None:
    """Slurm's times are compared with each other: only a drain from before the job's start is old."""
    job = Job(tmp_path)
    job.world.attempt("1.0.1.2")
    job.drains("n2", ago_s=60)
    assert set(job.reads()) == {"n2"}
    old = Job(tmp_path / "old")
    old.drains("n2", ago_s=3601)
    assert old.reads() == {}
    assert old.signals == []


def test_a_drain_that_was_handled_is_no_news_for_the_next_supervisor(tmp_path: Path) -> None:
    """The job could not leave; no attempt starts there all the same."""
    first = Job(tmp_path)
    LineageStore(first.world.session)
    first.drains("n2", ago_s=30)
    first.reads()
    first.world.session.node_faults.handled(["n2"])
    second = Job(tmp_path)
    second.world.job.claim = first.world.job.claim
    LineageStore(second.world.session)
    second.drains("n2", ago_s=30)
    assert set(second.reads()) == {"n2"}
    assert not second.world.session.node_faults.unhandled("n2")


def test_where_the_jobs_gpus_cannot_be_read_the_next_reading_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain is not taken for one of a shared node."""
    job = Job(tmp_path)
    job.drains("n2")

    def fails(_: JobRef) -> dict[str, frozenset[int]]:
        raise SlurmUnavailableError("read the GPUs", "it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(job.world.slurm, "job_gpus", fails)
        assert job.reads() == {}
        assert job.signals == []
    assert set(job.reads()) == {"n2"}
