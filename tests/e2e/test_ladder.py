"""Hangs that no stack explains: the nodes are tested between two attempts, on real parts, and training goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Training  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust import checkpoint
from slurm_robust.devcluster.cluster import DevCluster

pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]
FAULTY = Path(__file__).resolve().parents[1] / "stoptime" / "faulty_ranks"
PROGRAM = """
import os, pathlib, threading, time
from slurm_robust import progress
struck = pathlib.Path("struck-" + os.environ["SLURM_PROCID"])
for step in range(int(os.environ["SROBUST_RESUME_STEP"]) + 1, 41):
    time.sleep(0.1)
    progress.step(step)
    if step == 22 and not struck.exists():
        struck.touch()
        threading.Event().wait()  # all ranks: nothing tells for whom
"""


@pytest.fixture
def hangs(cluster: Cluster, tmp_path: Path) -> Callable[..., Training]:
    """Submits a training on four of five nodes that hangs once; `faults` are those of its nodes' tests."""

    def submitted(faults: dict[str, str], **ladder: object) -> Training:
        dev = cluster(
            nodes=5,
            standby=0,
            daemon=False,
            supervise={"action_limit_s": 8.0},
            yaml={"ladder": {"tests": ["pairs"], "budget_s": 60, **ladder}},
        )
        folder = tmp_path / "job"
        (folder / "groups").mkdir(parents=True)
        (folder / "train.py").write_text(PROGRAM)
        checkpoint.save(folder / "ck", 10, {"step": 10})
        run = f"srobust run --robust-checkpoint-dir=ck -N4 -n4 {sys.executable} train.py"
        (folder / "job.sh").write_text(f"#!/bin/bash\n{run}\n")
        env = dev.env | {
            "PYTHONPATH": f"{FAULTY}{os.pathsep}{dev.env.get('PYTHONPATH', '')}",
            # Escaped: an environment that names a node keeps the job from going on without it in the allocation.
            "FAULTY_RANKS": json.dumps(faults).replace('"n', '"\\u006e'),
            "FAULTY_RANKS_FOLDER": str(folder / "groups"),
        }
        words = ["sbatch", "--parsable", "-N5", "--ntasks-per-node=1", "--exclusive", "--no-kill", f"--chdir={folder}"]
        done = dev.run([*words, f"--output={folder}/slurm-%j.out", str(folder / "job.sh")], env=env)
        return Training(dev, done.stdout.strip(), folder)

    return submitted


def pairs_run(job: Training) -> None:
    """Wait until the first round of pairs has begun: start of the tests, the agents, PyTorch, the round."""
    assert "round 1" in job.hears("testing", 90, 4)["text"], job.everything()


def nothing_of_the_tests_is_left(job: Training) -> None:
    """No process of a test on the cluster's nodes, and no step."""

    def left() -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes()
                ours = str(job.cluster.directory).encode() in (path / "environ").read_bytes()
            except OSError:
                continue
            if ours and (b"stoptime" in words or b"srobust-test" in words):
                found.append(words.decode("utf-8", "replace"))
        return found

    wait_until(lambda: not left(), 20, "every process of the tests has ended")


@pytest.mark.variant
def test_a_hang_of_all_ranks_ends_without_the_node_that_fails_the_pairs(hangs: Callable[..., Training]) -> None:
    """n2 fails with three proven nodes; the spare takes its place, and training resumes from the checkpoint."""
    job = hangs({"n2": "segfault"})
    assert job.hears("relaunched", 120)["evicted"] == ["n2"], job.everything()
    nothing_of_the_tests_is_left(job)
    assert job.hears("resumed")["resume_step"] == 10
    assert job.ends().exit_code == "0:0", job.everything()
    first, second = job.told("decided")
    assert (first["road"], second["road"], second["evict"]) == ("test", "spare_in_allocation", ["n2"])
    (report,) = job.story_folder.glob("*/tests-1.json")
    assert json.loads(report.read_text())["failed_nodes"] == ["n2"]
    assert "SIGSEGV" in (report.parent / "report.md").read_text()


@pytest.mark.variant
def test_a_supervisor_that_is_killed_during_the_tests_leaves_none_and_does_not_begin_them_again(
    hangs: Callable[..., Training],
) -> None:
    """Its step ends with its stdin; the next supervisor restarts the training, and no node is blamed."""
    job = hangs({"n2": "hang"})
    pairs_run(job)
    for pid in job.cluster.processes(int(job.id)):
        words = Path(f"/proc/{pid}/cmdline")
        if words.exists() and b"-m\0slurm_robust.supervise\0" in words.read_bytes():
            os.kill(pid, signal.SIGKILL)
    nothing_of_the_tests_is_left(job)
    assert job.hears("relaunched", 60)["evicted"] == [], job.everything()
    assert job.ends().exit_code == "0:0", job.everything()
    assert len([line for line in job.told("testing") if "tests" in line]) == 1, job.everything()


@pytest.mark.variant
def test_a_job_that_is_cancelled_during_the_tests_leaves_nothing(hangs: Callable[..., Training]) -> None:
    """Slurm ends the step of the tests with the job, and no node is drained for it."""
    job = hangs({"n2": "hang"})
    pairs_run(job)
    job.cluster.run(["scancel", job.id])
    assert job.ends().state == "CANCELLED"
    nothing_of_the_tests_is_left(job)
    assert not [node.name for node in job.client.nodes() if node.drained]


@pytest.mark.variant
def test_a_node_that_dies_in_the_tests_is_left_for_that(hangs: Callable[..., Training]) -> None:
    """Its tests blame nobody: Slurm calls it dead, and that is why the next attempt is without it."""
    job = hangs({"n2": "hang"})
    pairs_run(job)
    job.cluster.kill_slurmd("n2")
    job.hears("tested", 120)
    assert job.told("tested")[0]["failed"] == [], job.everything()
    again = job.hears("decided", 60, 2)
    assert again["evict"] == ["n2"], job.everything()
    assert "n2 is dead" in again["text"]
    nothing_of_the_tests_is_left(job)
