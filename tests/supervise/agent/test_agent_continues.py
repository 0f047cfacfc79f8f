"""The agent continues the main process of a rank that a signal has stopped, and no other process."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_stage import AgentStage
from helpers import wait_until

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.messages import RankFound, RankState
from slurm_robust.supervise.agent.stopped_messages import ContinueRank, RankContinued

WITH_HELPER = """
import os, pathlib, time
helper = os.fork()
if helper:
    pathlib.Path("{where}").write_text(str(helper))
time.sleep(1000)
"""
_PTRACE_SEIZE, _PTRACE_DETACH = 0x4206, 17


def state(pid: int) -> str:
    """The state of a process."""
    found = procfs.stat(pid)
    return found.state if found is not None else ""


def test_a_stopped_rank_is_continued(stage: AgentStage) -> None:
    """The answer says so, and the process runs again."""
    victim = stage.victim(0)
    stage.start_agent()
    stage.receive(RankFound, rank=0)
    victim.send_signal(signal.SIGSTOP)
    stage.receive(RankState, state="T", pid=victim.pid)
    stage.send(ContinueRank("n1", 0, victim.pid))
    assert stage.receive(RankContinued) == RankContinued("n1", 0, victim.pid)
    stage.receive(RankState, state="")


def test_what_is_no_stopped_rank_is_left_alone(stage: AgentStage, tmp_path: Path) -> None:
    """A rank that runs, a rank's helper that was stopped by design, a process of nobody, the rank of another node."""
    victim = stage.victim(0, code=WITH_HELPER.replace("{where}", str(tmp_path / "helper")))
    stage.start_agent()
    stage.receive(RankFound, rank=0)
    helper = int(wait_until((tmp_path / "helper").exists, 10, "the helper") and (tmp_path / "helper").read_text())
    os.kill(helper, signal.SIGSTOP)
    stage.receive(RankState, state="T", pid=helper)
    for node, rank, pid in (("n2", 0, victim.pid), ("n1", 0, victim.pid), ("n1", 0, helper), ("n1", 7, victim.pid)):
        stage.send(ContinueRank(node, rank, pid))
    refused = [stage.receive(RankContinued).refused for _ in range(3)]
    assert refused == [
        f"process {victim.pid} is no longer stopped",
        f"process {helper} is no longer the rank's",
        f"process {victim.pid} is no longer the rank's",
    ]
    assert state(helper) == "T"


@pytest.fixture
def traced(stage: AgentStage) -> Iterator[int]:
    """A rank that this process traces, as a debugger would, and that a signal has stopped."""
    victim = stage.victim(0)
    stage.start_agent()
    stage.receive(RankFound, rank=0)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(_PTRACE_SEIZE, victim.pid, None, None) == 0, os.strerror(ctypes.get_errno())
    victim.send_signal(signal.SIGSTOP)
    yield victim.pid
    libc.ptrace(_PTRACE_DETACH, victim.pid, None, None)


def test_a_rank_that_a_debugger_holds_is_reported_as_such_and_stays_held(stage: AgentStage, traced: int) -> None:
    """Its state is `t`, never `T`, and the agent refuses to continue it."""
    stage.receive(RankState, state="t", pid=traced)
    stage.send(ContinueRank("n1", 0, traced))
    assert stage.receive(RankContinued).refused == f"process {traced} is held by a debugger"
    assert state(traced) == "t"


def test_the_main_process_is_reported_before_its_stopped_helper(stage: AgentStage, tmp_path: Path) -> None:
    """A helper is stopped, then the rank itself: the second is news."""
    victim = stage.victim(0, code=WITH_HELPER.replace("{where}", str(tmp_path / "helper")))
    stage.start_agent()
    stage.receive(RankFound, rank=0)
    helper = int(wait_until((tmp_path / "helper").exists, 10, "the helper") and (tmp_path / "helper").read_text())
    os.kill(helper, signal.SIGSTOP)
    stage.receive(RankState, state="T", pid=helper)
    victim.send_signal(signal.SIGSTOP)
    stage.receive(RankState, state="T", pid=victim.pid)
