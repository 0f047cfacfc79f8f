"""SIGKILL for what is left of an ended attempt."""

from __future__ import annotations

import os
import signal
import time

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.ranks import StepProcess

_OTHERS_FIRST_S = 0.4
_DEATH_POLL_S = 0.005


def kill(members: list[StepProcess]) -> None:
    """SIGKILL for all of them, the tasks themselves last.

    A slurmstepd that finds processes left when its task has ended looks again a whole second later; where they went
    before, the step ends at once. The tasks are stopped meanwhile, so that none of them reacts to its loader's death.
    """
    pids = {m.pid for m in members}
    tasks = [m.pid for m in members if m.ppid not in pids]
    others = [m.pid for m in members if m.ppid in pids]
    if others:
        _signal(tasks, signal.SIGSTOP)
        _signal(others, signal.SIGKILL)
        deadline = time.monotonic() + _OTHERS_FIRST_S
        while time.monotonic() < deadline and any(_lives(pid) for pid in others):
            time.sleep(_DEATH_POLL_S)
    _signal(tasks, signal.SIGKILL)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def _lives(pid: int) -> bool:
    stat = procfs.stat(pid)
    return stat is not None and stat.state not in ("Z", "X")
