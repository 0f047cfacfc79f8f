"""Do processes of finished jobs still run here?"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Options
from slurm_robust.nodecheck.sources import processes

_MAX_ENVIRON_BYTES = 128 << 10
_MAX_TOLD = 20
_MAX_DEPTH = 200


def _environ(folder: str) -> dict[str, str]:
    raw = processes.read(f"{folder}/environ", _MAX_ENVIRON_BYTES)  # empty: it ended, or it is not ours to read
    if b"SLURM_JOB_ID=" not in raw:
        return {}
    return dict(part.decode("utf-8", "replace").partition("=")[::2] for part in raw.split(b"\0") if b"=" in part)


def _of_task(env: dict[str, str], node: str) -> str:
    """Return the job id if this is a task's environment on this node, else empty.

    A client (`srun`, an `salloc` shell) knows the job but no node; a prolog or epilog of any job on a shared node knows
    both, and tells itself by SLURM_SCRIPT_CONTEXT.
    """
    if env.get("SLURMD_NODENAME") != node or "SLURM_SCRIPT_CONTEXT" in env:
        return ""
    if not ({"SLURM_PROCID", "SLURM_TASK_PID", "SLURM_STEP_ID"} & env.keys()):
        return ""
    job = env.get("SLURM_JOB_ID", "")
    return job if job.isdigit() else ""


def _managed(pid: int, parents: Mapping[int, int], managers: Container[int]) -> bool:
    """True for a live slurmstepd and all below it.

    A task of a heterogeneous job calls itself by the leader's id, its slurmstepd by that of its own part.
    """
    for _ in range(_MAX_DEPTH):
        if pid in managers:
            return True
        pid = parents.get(pid, 0)
        if pid <= 1:
            return False
    return False


def probe(context: Context, options: Options) -> Facts:
    """Tasks by job, and the jobs that have a live slurmstepd."""
    tasks: list[Facts] = []
    managers = processes.job_managers(context)
    parents = {process.pid: process.parent for process in processes.scan(context)}
    readable = 0
    for process in processes.scan(context):
        if process.kernel or process.pid == os.getpid() or _managed(process.pid, parents, managers):
            continue
        folder = str(context.path(f"/proc/{process.pid}"))
        readable += 1
        if job := _of_task(_environ(folder), context.node):
            command = processes.read(f"{folder}/cmdline", 4096).decode("utf-8", "replace").replace("\0", " ").strip()
            tasks.append({"pid": process.pid, "job": int(job), "command": command[:80] or process.command})
    alive = sorted(set(managers.values()))
    return {"tasks": tasks, "alive": alive, "job": context.job_id, "processes": readable}


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: a process may be ending, and other checks see what it holds."""
    running = {*facts["alive"], facts["job"]}
    left = [task for task in facts["tasks"] if task["job"] not in running]
    if not left:
        return Finding.passed("no_leftovers", "no process of a finished job")
    jobs = sorted({task["job"] for task in left})
    told = ", ".join(str(job) for job in jobs[:5]) + (", …" if len(jobs) > 5 else "")
    sentence = f"{len(left)} processes of finished jobs ({told}) still run here"
    remedy = "look at them with `ps`; end them, or reboot where they sit in the kernel (state D)"
    return Finding.warn("leftover_processes", sentence, remedy, {"processes": left[:_MAX_TOLD]})


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/*/{stat,environ}, the command lines of tasks; jobs with a live slurmstepd count as running",
    cost="two small reads a process, one a kernel thread, 5–50 ms",
    lane="files",
)
