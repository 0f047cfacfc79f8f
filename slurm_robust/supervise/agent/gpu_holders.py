"""Finds processes of an ended step that still hold a GPU of this node, even if their environment names no job."""

from __future__ import annotations

import glob
import os
import re

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.ranks import StepProcess, Target

DEVICES = "/dev/nvidia"
_CGROUP = re.compile(r"/(job_\d+|s[0-9A-Z]{13})/step_(\d+)(?:/|$)", re.MULTILINE)
"""Matches the folders of a job and a step; Slurm 26.05 names a job's folder by its SLUID."""


def holders(target: Target, steps: set[str], devices: str = DEVICES) -> list[StepProcess]:
    """Return the processes of these steps that hold a device file open; empty if there is no such file."""
    if not steps or not glob.glob(glob.escape(devices) + "*"):
        return []
    me, own, out = os.getuid(), os.getpid(), []
    for pid in procfs.pids():
        if pid == own or (me != 0 and procfs.owner(pid) != me) or not _holds(pid, devices):
            continue
        step = _step_of(pid, target)
        stat = procfs.stat(pid)
        if step in steps and stat is not None and stat.alive:
            out.append(StepProcess(pid, stat.ppid, stat.start_ticks, stat.command, -1, -1, step, 0, -1, ""))
    return out


def _holds(pid: int, devices: str) -> bool:
    return any(link.startswith(devices) for link in procfs.open_links(pid))


def _step_of(pid: int, target: Target) -> str:
    """Return the step of this job and node that a process belongs to, by its environment or its cgroup; else empty."""
    env = procfs.environ(pid)
    if env.get("SLURMD_NODENAME", target.node) != target.node or env.get("SROBUST_WATCH"):
        return ""
    if "SLURM_JOB_ID" in env:
        return env.get("SLURM_STEP_ID", "") if env["SLURM_JOB_ID"] == target.job_id else ""
    match, own = _CGROUP.search(procfs.cgroup(pid)), _CGROUP.search(procfs.cgroup(os.getpid()))
    # An agent is a step of the job, too: a SLUID that both have is the SLUID of the job.
    return match[2] if match and match[1] in (f"job_{target.job_id}", own[1] if own else "") else ""
