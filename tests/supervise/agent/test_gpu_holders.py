"""Who holds a GPU: real processes, and files that stand for the devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.supervise.agent import gpu_holders, procfs
from slurm_robust.supervise.agent.ranks import Target

TARGET = Target("987654", "n1", "1.0.1", "1")
HOLD = "import pathlib, sys, time; f = open(sys.argv[1]); pathlib.Path(sys.argv[2]).touch(); time.sleep(1000)"
Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process that holds a device, with this environment; its pid."""
    (tmp_path / "nvidia0").touch()
    (tmp_path / "other").touch()
    processes: list[subprocess.Popen[bytes]] = []

    def begin(*, device: str = "nvidia0", **env: str) -> int:
        ready = tmp_path / f"ready{len(processes)}"
        process = subprocess.Popen([sys.executable, "-S", "-c", HOLD, str(tmp_path / device), str(ready)], env=env)
        processes.append(process)
        wait_until(ready.exists, 10, "the holder")
        return process.pid

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def held(tmp_path: Path, *steps: str) -> set[int]:
    """Pids of the holders."""
    return {m.pid for m in gpu_holders.holders(TARGET, set(steps), str(tmp_path / "nvidia"))}


def test_a_holder_of_the_ended_step_is_found_without_its_attempts_name(start: Start, tmp_path: Path) -> None:
    """By Slurm's own variables; other steps, jobs, nodes, files and the watch step are not touched."""
    env = {"SLURM_JOB_ID": "987654", "SLURM_STEP_ID": "0", "SLURMD_NODENAME": "n1"}
    mine = start(**env)
    start(**{**env, "SLURM_STEP_ID": "3"})
    start(**{**env, "SLURM_JOB_ID": "987655"})
    start(**{**env, "SLURMD_NODENAME": "n2"})
    start(**env, SROBUST_WATCH="1")
    start(**env, device="other")
    assert held(tmp_path, "0") == {mine}
    assert held(tmp_path) == set()


def test_a_holder_without_any_environment_is_found_by_its_cgroup(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that cleared its environment is still in the step's cgroup."""
    bare, other = start(), start()
    groups = {
        bare: "0::/system.slice/slurmstepd.scope/job_987654/step_0/user/task_0\n",
        other: "0::/system.slice/slurmstepd.scope/job_987654/step_10/user/task_0\n",
    }
    monkeypatch.setattr(procfs, "cgroup", lambda pid: groups.get(pid, ""))
    assert held(tmp_path, "0") == {bare}


def test_a_holder_is_found_where_slurm_names_the_cgroup_by_the_sluid(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm 26.05 does so: the agent is a step of the same job, so its own cgroup has the same name."""
    bare, other = start(), start()
    scope = "0::/system.slice/slurmstepd.scope"
    groups = {
        os.getpid(): f"{scope}/sEKNKTV3WPV500/step_9/user/task_0\n",
        bare: f"{scope}/sEKNKTV3WPV500/step_0/user/task_0\n",
        other: f"{scope}/sEKNKTV3WPV5ZZ/step_0/user/task_0\n",
    }
    monkeypatch.setattr(procfs, "cgroup", lambda pid: groups.get(pid, ""))
    assert held(tmp_path, "0") == {bare}


def test_a_node_without_devices_says_nothing(start: Start, tmp_path: Path) -> None:
    """Nothing is looked through where there is no device file."""
    start(SLURM_JOB_ID="987654", SLURM_STEP_ID="0", SLURMD_NODENAME="n1")
    assert gpu_holders.holders(TARGET, {"0"}, str(tmp_path / "nothing")) == []
    assert str(os.getpid()) not in procfs.cgroup(-1)
