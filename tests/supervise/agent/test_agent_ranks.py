"""Which processes the agent reports as ranks, their progress, their states and their ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agent_stage import AgentStage
from helpers import wait_until

from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.agent.messages import (
    Heartbeat,
    Hello,
    ProgressReport,
    RankFound,
    RankGone,
    RankState,
)
from slurm_robust.supervise.agent.ranks import ProcessFinder, Target


def test_foreign_processes_are_no_ranks(stage: AgentStage) -> None:
    """Another job, another node of the same host, another cluster, another attempt, the watch step, batch scripts."""
    stage.victim(0, SLURM_JOB_ID="1")
    stage.victim(1, SLURMD_NODENAME="n2")
    stage.victim(2, SROBUST_ATTEMPT="1.0.0")
    stage.victim(3, SLURM_STEP_ID="1")
    stage.victim(4, SROBUST_WATCH="1")
    stage.victim(6, SLURM_STEP_ID="4294967291")
    stage.victim(7, SLURM_STEP_ID="-5")
    stage.victim(8, SLURM_WORKING_CLUSTER="other:127.0.0.1:6817:9728:109")
    mine = stage.victim(5)
    stage.start_agent()
    assert stage.receive(RankFound).pid == mine.pid
    assert [r["rank"] for r in stage.capture(1)["ranks"]] == [5]


def test_a_stopped_and_a_dead_rank_are_reported(stage: AgentStage) -> None:
    """State T of any process of the tree, its end of it, and a rank that vanished."""
    victim = stage.victim(0)
    stage.start_agent()
    stage.receive(RankFound, rank=0)
    victim.send_signal(signal.SIGSTOP)
    assert stage.receive(RankState, rank=0, state="T").pid == victim.pid
    victim.send_signal(signal.SIGCONT)
    stage.receive(RankState, rank=0, state="")
    victim.kill()
    victim.wait()
    assert stage.receive(RankGone, rank=0).pid == victim.pid


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_rank_in_a_container_is_found(stage: AgentStage) -> None:
    """Another mount and PID namespace, /dev/shm of its own: progress and stack come through all the same."""
    prefix = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    stage.victim(0, prefix=prefix)
    stage.start_agent()
    stage.receive(RankFound, rank=0)

    def progress() -> bool:
        return any(entry[1] >= 0 for entry in stage.receive(ProgressReport).progress)

    wait_until(progress, timeout_s=15, what="progress through the namespaces")
    archive = stage.capture(1)
    names = [f[0] for threads in archive["stacks"].values() for t in threads for f in t["frames"]]
    assert "training_loop" in names


LOADED_RANK = """
import os, pathlib, time
if os.fork() == 0:
    pathlib.Path("{where}/loader").write_text(str(os.getpid()))
time.sleep(1000)
"""


def test_a_dead_ranks_loader_does_not_take_its_place(stage: AgentStage, tmp_path: Path) -> None:
    """The loader outlives its rank for seconds: the rank is gone all the same, and nobody is above it to decide."""
    victim = stage.victim(0, code=LOADED_RANK.replace("{where}", str(tmp_path)))
    written = tmp_path / "loader"
    loader = int(wait_until(lambda: written.exists() and written.read_text(), 10, "the loader"))
    stage.start_agent()
    try:
        stage.receive(RankFound, rank=0)
        assert len(stage.capture(1)["ranks"][0]["processes"]) == 2
        victim.kill()
        victim.wait()
        gone = stage.receive(RankGone, rank=0)
        assert (gone.pid, gone.task_lives) == (victim.pid, False)
        stage.receive(Heartbeat, ranks=0)
        assert not [m for m in stage.unread if isinstance(m, RankFound)]
    finally:
        os.kill(loader, signal.SIGKILL)


def test_below_a_shell_a_ranks_end_is_the_shells_to_judge(stage: AgentStage) -> None:
    """With torchrun or a shell above, the worker's end is not the task's."""
    python = f"RANK=3 {sys.executable} -c 'import time; time.sleep(1000)'"
    shell = subprocess.Popen(["sh", "-c", f"{python} & echo $!; sleep 1000"], env=stage.env(0), stdout=subprocess.PIPE)
    stage.processes.append(shell)
    assert shell.stdout is not None
    worker = int(shell.stdout.readline())
    stage.start_agent()
    wait_until(lambda: stage.receive(RankFound, rank=3), 15, "the worker")
    os.kill(worker, signal.SIGKILL)
    assert stage.receive(RankGone, rank=3).task_lives is True


def test_the_agent_imports_nothing_but_the_standard_library(stage: AgentStage) -> None:
    """It runs with -S on every node: site-packages are not even visible."""
    stage.start_agent()
    stage.receive(Hello)


def test_a_process_that_was_seen_before_its_exec_is_read_again_however_late(stage: AgentStage) -> None:
    """As torchrun forks a worker, and only then gives it its RANK: the next look at it may come seconds later."""

    class LaterClock(SystemClock):
        later_s = 0.0

        def since_boot_s(self) -> float:
            return super().since_boot_s() + self.later_s

    clock = LaterClock()
    finder = ProcessFinder(Target(stage.job, "n1", "1.0.1", "9"), clock)
    script = "read line; RANK=3 exec sleep 1000"
    worker = subprocess.Popen(["sh", "-c", script], env=stage.env(0), stdin=subprocess.PIPE)
    stage.processes.append(worker)
    ranks = wait_until(lambda: [p.rank for p in finder.processes() if p.pid == worker.pid], 15, "the worker")
    assert ranks == [-1]
    assert worker.stdin is not None
    worker.stdin.write(b"go\n")
    worker.stdin.flush()
    wait_until(lambda: Path(f"/proc/{worker.pid}/comm").read_text() == "sleep\n", 15, "its exec")
    clock.later_s = 7.0
    for _ in range(2):
        assert [p.rank for p in finder.processes() if p.pid == worker.pid] == [3]
