"""SIGKILL for what is left of an ended attempt."""

from __future__ import annotations

import os
import signal

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.ranks import StepProcess

_OTHERS_FIRST_S = 0.4
_DEATH_POLL_S = 0.005


def kill(processes: list[StepProcess], clock: SystemClock = CLOCK) -> None:
    """Send SIGKILL to all of them, to the tasks themselves last.

    Where slurmstepd still finds processes when its task has ended, it checks again only a second later; without any the
    step ends at once. The tasks are stopped meanwhile, so that none of them reacts to its loader's death.
    """
    pids = {p.pid for p in processes}
    tasks = [p.pid for p in processes if p.ppid not in pids]
    others = [p.pid for p in processes if p.ppid in pids]
    if others:
        _signal(tasks, signal.SIGSTOP)
        _signal(others, signal.SIGKILL)
        deadline_s = clock.monotonic_s() + _OTHERS_FIRST_S
        while clock.monotonic_s() < deadline_s and any(procfs.lives(pid) for pid in others):
            clock.pause(_DEATH_POLL_S)
    _signal(tasks, signal.SIGKILL)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue
