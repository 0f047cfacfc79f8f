"""Do processes hang in the kernel, pile up as zombies, or keep the node busy without a job?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state, counters
from slurm_robust.nodecheck.sources import processes, small_files
from slurm_robust.nodecheck.sources.processes import NodeProcess

_MAX_KEPT = 500
_MAX_TOLD = 5
_LOADAVG = re.compile(r"(\d{1,6}\.\d{1,4}) (\d{1,6}\.\d{1,4}) \d{1,6}\.\d{1,4} (\d{1,6})/")
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s+(\d{1,18})$", re.MULTILINE)


def _since(kept: Mapping[str, Any], name: str, now_s: float) -> float:
    """Return when this was seen first, by an earlier run or by this one."""
    value = kept.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= now_s else now_s


def _stuck(process: NodeProcess) -> str:
    """Return `blocked`, `zombie`, or empty. A zombie whose threads live on waits in the kernel to exit."""
    if process.kernel:
        return ""
    if process.state == "D" or (process.state == "Z" and process.threads > 1):
        return "blocked"
    return "zombie" if process.state == "Z" else ""


def _switches(context: Context, pid: int) -> int:
    """Return how often the kernel gave the process the CPU and took it away: while it hangs, this number stands."""
    found = _SWITCHES.findall(small_files.read_text(context.path(f"/proc/{pid}/status"), 1 << 14))
    return sum(int(number) for number in found)


def _load(context: Context, every: Sequence[NodeProcess]) -> float:
    """Return the load that has lasted for minutes and is still there.

    It is the least of both averages and of the processes that run or wait for a disk now: averages fade for minutes
    after the end of a job.
    """
    match = _LOADAVG.match(small_files.text(context.path("/proc/loadavg")))
    if match is None:
        return 0.0
    waiting = sum(1 for process in every if process.state == "D" and not process.kernel)
    return min(float(match[1]), float(match[2]), float(int(match[3]) + waiting))


def probe(context: Context, options: Options) -> Facts:
    """Processes in D or Z, each with the time since when it was seen so; the load where slurmd runs without a job."""
    now_s, boot_id = counters.uptime_s(), context.boot_id()
    kept = check_state.load(context.cache_dir, check.name)
    kept = kept if kept.get("boot_id") == boot_id else {}
    seen = kept.get("seen")
    seen = seen if isinstance(seen, Mapping) else {}
    stuck = []
    every = processes.scan(context)
    for process in every:
        if kind := _stuck(process):
            name = f"{kind}:{process.pid}:{process.started}"
            if kind == "blocked":
                name += f":{_switches(context, process.pid)}"
            said = {"kind": kind, "pid": process.pid, "command": process.command, "since_s": _since(seen, name, now_s)}
            stuck.append({**said, "name": name})
    online = len(small_files.cpus(small_files.text(context.path("/sys/devices/system/cpu/online"), 4096)))
    jobs = len(set(processes.job_managers(context).values()))
    return {
        "processes": len(every),
        "stuck": stuck[:_MAX_KEPT],
        "zombies": sum(1 for one in stuck if one["kind"] == "zombie"),
        "load": _load(context, every),
        "cpus": online,
        "jobs": jobs,
        "slurmd": any(process.command == "slurmd" for process in every),
        "now_s": now_s,
        "boot_id": boot_id,
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: a process waits for something that another check looks at."""
    if not facts["processes"]:
        return Finding.skip("no_processes", "no processes can be seen here")
    now_s = facts["now_s"]
    blocked = [
        one
        for one in facts["stuck"]
        if one["kind"] == "blocked" and now_s - one["since_s"] >= options["warn_blocked_s"]
    ]
    if blocked:
        told = ", ".join(f"{one['command']} {one['pid']}" for one in blocked[:_MAX_TOLD])
        longest = max(now_s - one["since_s"] for one in blocked)
        sentence = f"{len(blocked)} processes hang in the kernel, for {longest / 60:.0f} min or more ({told})"
        remedy = f"`cat /proc/{blocked[0]['pid']}/stack` says where; a dead mount or driver is usual, a reboot ends it"
        return Finding.warn("tasks_blocked", sentence, remedy, {"blocked": blocked[:_MAX_TOLD]})
    old = [
        one for one in facts["stuck"] if one["kind"] == "zombie" and now_s - one["since_s"] >= options["zombie_age_s"]
    ]
    if len(old) >= options["warn_zombies"] > 0:
        told = ", ".join(sorted({one["command"] for one in old})[:_MAX_TOLD])
        sentence = f"{len(old)} zombies wait for their parents ({told})"
        return Finding.warn(
            "zombies", sentence, "end their parents: `ps -eo stat,ppid,pid,comm | grep ^Z`", {"zombies": len(old)}
        )
    share = options["warn_idle_load_share"]
    if facts["slurmd"] and not facts["jobs"] and facts["cpus"] and share and facts["load"] >= facts["cpus"] * share:
        sentence = f"load {facts['load']:.0f} on {facts['cpus']} CPUs, and no job runs here"
        return Finding.warn("busy_without_job", sentence, "find out who it is: `top`; leftovers of jobs are usual")
    evidence = {key: facts[key] for key in ("processes", "zombies", "load", "jobs")}
    return Finding.passed("tasks_fine", f"{facts['processes']} processes, none stuck", evidence)


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep since when each stuck process is seen so."""
    return {"boot_id": facts["boot_id"], "seen": {one["name"]: one["since_s"] for one in facts["stuck"]}}


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/*/stat, the status of those in state D, /proc/loadavg, the command lines of slurmstepd",
    cost="one small read a process, 5–40 ms",
    lane="files",
    options={
        "warn_blocked_s": Option(
            300.0,
            "seconds between two runs that found a process in state D, never woken in between, from which it warns",
            "ours: the kernel's own hung-task limit is 120 s; large checkpoints wait as long",
        ),
        "zombie_age_s": Option(300.0, "seconds from which a zombie counts", "ours: parents collect them in seconds"),
        "warn_zombies": Option(50, "zombies of that age from which it warns; 0: never", "ours: it only holds a pid"),
        "warn_idle_load_share": Option(
            0.5,
            "load per CPU (over 5 min, 1 min and now), where no job runs, from which it warns; 0: never",
            "ours: the services of a node stay far below",
        ),
    },
)
