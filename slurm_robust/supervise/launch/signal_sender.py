"""Tells who sent a signal: a process, a key of a terminal, or Slurm, which then signals srun, too."""

from __future__ import annotations

import signal

from slurm_robust.supervise.agent import procfs


def sent_by_process(info: signal.struct_siginfo) -> bool:
    """Return whether a process sent a signal, as with kill(1); a terminal's keys are sent by the kernel."""
    return info.si_code <= 0


def sent_by_slurm(sender_pid: int) -> bool:
    """Return whether a slurmstepd sent a signal: it signals srun, too, unless we are its direct child."""
    sender = procfs.stat(sender_pid)
    return sender is not None and sender.command.startswith("slurmstepd")
