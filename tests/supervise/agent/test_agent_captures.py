"""The stacks that the agent takes, with real ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent_stage import AgentStage
from helpers import wait_until

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.messages import (
    Hello,
    ProgressReport,
    RankFound,
    RankState,
)
from slurm_robust.supervise.reported.watch_step import py_spy_path


def test_ranks_their_progress_and_their_stacks_are_found(stage: AgentStage) -> None:
    """Found by environment; progress by memfd; a capture names the function each stands in, and leaves it running."""
    victims = [stage.victim(0), stage.victim(1)]
    stage.start_agent()
    stage.receive(Hello)
    for rank, victim in enumerate(victims):
        assert stage.receive(RankFound, rank=rank).pid == victim.pid
    reported = set()
    while reported != {0, 1}:  # one may begin later than the other
        entries = stage.receive(ProgressReport).progress
        assert all(entry[2] == "train" for entry in entries)
        reported |= {entry[0] for entry in entries}
    archive = stage.capture(7)
    assert [r["rank"] for r in archive["ranks"]] == [0, 1]
    for entry in archive["ranks"]:
        main = entry["processes"][0]
        assert not main["error"]
        functions = [f[0] for t in archive["stacks"][main["stack"]] if t["main"] for f in t["frames"]]
        assert functions[-1] == "training_loop"
        assert entry["progress"]["step"] >= 0
    assert all(v.poll() is None for v in victims)


def test_a_stopped_rank_is_captured_and_stays_stopped(stage: AgentStage) -> None:
    """What somebody stopped is evidence."""
    victim = stage.victim(0)
    stage.start_agent()
    stage.receive(ProgressReport)
    victim.send_signal(signal.SIGSTOP)
    stage.receive(RankState, rank=0, state="T")
    main = stage.capture(1)["ranks"][0]["processes"][0]
    assert main["state"] == "T"
    assert main["stack"]
    assert procfs.stat(victim.pid).state == "T"


def test_a_rank_that_stops_while_its_stack_is_taken_stays_stopped(stage: AgentStage, tmp_path: Path) -> None:
    """py-spy that does not block stops nobody: who stopped the rank did so on purpose, and nothing continues it."""
    dump = tmp_path / "py-spy"
    dump.write_text(f'#!/bin/sh\nfor pid; do :; done\nkill -STOP "$pid"\nexec {py_spy_path()} "$@"\n')
    dump.chmod(0o755)
    victim = stage.victim(0)
    stage.start_agent(str(dump))
    stage.receive(ProgressReport)
    assert stage.capture(1)["ranks"][0]["processes"][0]["stack"]
    stage.receive(RankState, rank=0, state="T")
    assert procfs.stat(victim.pid).state == "T"


def test_the_whole_tree_is_captured_and_one_failure_spoils_nothing(stage: AgentStage) -> None:
    """A shell (no Python: py-spy fails on it) above a rank with a forked helper."""
    code = """
import os, sys, time
def helper():
    time.sleep(1000)
def leader():
    time.sleep(1000)
helper() if os.fork() == 0 else leader()
"""
    script = f"{sys.executable} -c '{code}' & sleep 1000"
    process = subprocess.Popen(["sh", "-c", script], env=stage.env(0), start_new_session=True)
    try:
        stage.start_agent()
        stage.receive(RankFound, rank=0)

        def captured() -> list[dict[str, Any]]:
            archive = stage.capture()
            got: list[dict[str, Any]] = archive["ranks"][0]["processes"] if archive["ranks"] else []
            return got if sum(1 for p in got if p["stack"]) == 2 else []

        processes = wait_until(captured, timeout_s=15, what="two Python processes with stacks")
        assert len(processes) == 4  # sh, sleep, leader, helper
        assert processes[0]["stack"], "the rank's own process is its first Python, not the shell above it"
        assert sum(1 for p in processes if p["error"]) == 2
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
