"""Is a GPU still in use, or its memory still held, when a job is to get it or has just ended?"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.nvml import facts as nvml
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, has_mig, needs_gpus, reported
from slurm_robust.nodecheck.nvml.session import of
from slurm_robust.nodecheck.sources import job_cgroups, processes, small_files

_STEPD = re.compile(r"slurmstepd: \[(\d{1,10})[.\]]")
_JOB_OF_ENVIRON = re.compile(r"(?:\A|\0)SLURM_JOB_ID=(\d{1,10})\0")
_SERVERS = frozenset({"nvidia-cuda-mps", "nv-hostengine", "dcgm-exporter", "nvidia-persiste", "Xorg"})
"""Names (cut to 15 characters by the kernel) of what runs on GPUs for all jobs."""
_NAMES = ("processes", "other_processes", "memory", "mig_mode")
_USERS = "/sys/module/nvidia_uvm/refcnt"
"""The number of openings of the driver of CUDA's memory: each CUDA process has it open, tools that only look do not."""
_TRIES = 8
_PAUSE_S = 0.5


def _live_jobs(context: Context) -> list[int]:
    """Jobs with a slurmstepd here."""
    jobs = set()
    for folder in context.path("/proc").glob("[1-9]*"):
        match = _STEPD.match(small_files.read_text(folder / "cmdline", 64).replace("\0", " "))
        if match and processes.is_systems(context, int(folder.name)):
            jobs.add(int(match[1]))
    return sorted(jobs)


def process(context: Context, pid: int) -> Facts:
    """Return a process's name, and its job by its control group, or by its environment if Slurm uses no such groups."""
    folder = context.path("/proc") / str(pid)
    job = job_cgroups.job_of(context, small_files.read_text(folder / "cgroup", 4096))
    if job is None and (named := _JOB_OF_ENVIRON.search(small_files.read_text(folder / "environ", 128 << 10))):
        job = int(named[1])
    return {
        "pid": pid,
        "name": small_files.read_text(folder / "comm", 64).strip()[:15],
        "job": job,
        "there": folder.is_dir(),
    }


def _look(context: Context, options: Options) -> Facts:
    facts = nvml.take(context, *_NAMES)
    pids = {one["pid"] for gpu in facts["gpus"] for one in gpu["values"].get("processes", [])}
    held = any(_share(memory) > options["held_share"] for _, memory in reported(facts, "memory"))
    return {
        **facts,
        "job": context.job_id,
        "job_gpus": list(context.job_gpus),
        "live_jobs": _live_jobs(context) if pids or held else [],  # a walk through /proc, only for a reason
        "processes": {str(pid): process(context, pid) for pid in sorted(pids)},
        "users": small_files.read_text(context.path(_USERS), 32).strip(),
        "root": os.geteuid() == 0 and small_files.read_text(context.path("/proc/2/comm"), 32).strip() == "kthreadd",
    }


def probe(context: Context, options: Options) -> Facts:
    """Look, and look again if there is a problem: an ending process takes a moment to let go."""
    facts = _look(context, options)
    for _again in range(_TRIES):
        if judge(facts, options).status not in (Status.WARN, Status.FAIL):
            break
        time.sleep(_PAUSE_S)
        of(context).forget(_NAMES)
        facts = _look(context, options)
    return facts


@needs_gpus("memory", "used memory")
def judge(facts: Facts, options: Options) -> Finding:
    """Judge the GPUs of this job, or all if no job runs here; processes of running jobs are not leftovers.

    A process that was left warns: it can be ended. Memory without a process fails on a GPU that was given to this job,
    if root sees it on the host itself; not with MIG, and not if the kernel uses the GPU's memory, too.
    """
    others = [job for job in facts["live_jobs"] if job != facts["job"]]
    judged = [gpu for gpu in facts["gpus"] if gpu["minor"] in facts["job_gpus"]]
    if not judged:
        if others:
            return Finding.skip("jobs_run", "other jobs run here, and it is not known which GPUs are this job's")
        judged = facts["gpus"]
    faults = []
    used = {gpu["index"]: memory for gpu, memory in reported(facts, "memory")}
    for gpu in judged:
        held = [facts["processes"].get(str(one["pid"]), {}) for one in gpu["values"].get("processes", [])]
        left = [one for one in held if one.get("there") and not _excused(one, others, facts)]
        memory = used.get(gpu["index"], {})
        if left:
            text = f"still in use by {', '.join(_told(one) for one in left[:3])}"
            faults.append(Fault.warn("gpu_in_use", text, "end these processes; reboot if they do not end", gpu))
        elif _share(memory) > options["held_share"] and not (held or others or _special(gpu) or _drawn_on(gpu)):
            text = f"{memory['used'] >> 20} MiB of memory are held by no process"
            sure = facts["root"] and facts["stage"] == "prolog" and gpu["minor"] in facts["job_gpus"]
            remedy = "`fuser -v /dev/nvidia*`; reset the GPU (`nvidia-smi --gpu-reset -i N`), or reboot"
            faults.append(Fault(Status.FAIL if sure else Status.WARN, "memory_held", text, remedy, gpu))
    mib = {gpu["bus"]: used[gpu["index"]]["used"] >> 20 for gpu in judged if gpu["index"] in used}
    told = [facts["processes"][pid] for pid in facts["processes"]][:20]
    return conclude_gpus(faults, ("gpus_free", f"{len(judged)} GPUs are free"), {"used_mib": mib, "processes": told})


def _share(memory: Mapping[str, int]) -> float:
    """Return the share in use; 0 for older drivers, which count their own reserve as used."""
    return memory["used"] / (memory["total"] or 1) if "reserved" in memory else 0.0


def _drawn_on(gpu: Facts) -> bool:
    """Tell whether a desktop, renderer or client of MPS holds memory there."""
    return bool(gpu["values"].get("other_processes", 0))


def _special(gpu: Facts) -> bool:
    """Used memory says nothing of processes there."""
    return bool(has_mig(gpu) or gpu["profile"].get("coherent"))


def _excused(process: Facts, others: list[int], facts: Facts) -> bool:
    """Tell whether the process is of a running job, a known server, or (outside prolog and epilog) may be allowed."""
    if process["job"] is None:
        return process["name"] in _SERVERS or facts["stage"] == "full"
    return process["job"] in others or (process["job"] == facts["job"] and facts["stage"] != "epilog")


def _told(process: Facts) -> str:
    of_job = f" of job {process['job']}" if process["job"] is not None else ""
    return f"{process['name']} ({process['pid']}){of_job}"


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the condition that the GPUs have no more openings than now; no opening if processes were seen on them.

    If memory is in use on a GPU of another job, there is no verdict: this check looks at that GPU when it is given
    away.
    """
    if any(_share(memory) > options["held_share"] and not _special(gpu) for gpu, memory in reported(facts, "memory")):
        return [("never",)]
    return [("most", _USERS, facts["users"] if facts["users"].isdecimal() and not facts["processes"] else "0")]


check = Check(
    **Check.parts_of(__name__),
    **nvml.NVML_LANE,
    reads="NVML: processes and used memory; /proc/PID/{comm,cgroup,environ,cmdline}; SLURM_JOB_GPUS",
    cost="four calls a GPU, 1–5 ms; up to 4 s more for a GPU that seems in use",
    if_not_run=(("most", _USERS, "0"),),
    options={
        "held_share": Option(
            0.1, "share of a GPU's memory above which it counts as held", "ours: a job that fills its GPUs ends by it"
        )
    },
)
