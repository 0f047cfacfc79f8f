"""Reports CPU that processes of no job take from the jobs of this node, and short memory: never a node's fault.

The names of these processes stand only in the service's log, which root reads: findings reach the jobs' users, who may
not see each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_robust.core.text import printable
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding
from slurm_robust.nodecheck.sources import job_cgroups, processes, small_files
from slurm_robust.nodecheck.sources.processes import NodeProcess
from slurm_robust.nodewatch.verdicts import to_json

_CPU, _MEMORY = "host_cpu", "host_memory"
_LEAST_CPUS, _LEAST_SHARE = 1.0, 0.05
"""The least use by foreign processes together that is told: this many CPUs, and this share of all CPUs."""
_IDLE_SHARE = 0.1
"""The idle share of the CPUs beyond which the jobs have what they need."""
_LOOKS = 2
_SMALL_CPUS = 0.02
_MAX_NAMED = 5
_MAX_PARENTS = 64
_JOB = re.compile(r"(?:\A|\0)SLURM_JOB_ID=(\d{1,10})\0")
_UID = re.compile(r"^Uid:\s+(\d{1,10})\s", re.MULTILINE)
_RSS = re.compile(r"^VmRSS:\s+(\d{1,15}) kB$", re.MULTILINE)
_HINT = "`journalctl -u srobust-nodewatch` on the node names the processes"


class HostLoad:
    """Looks at the node's CPUs and memory, and remembers the last look.

    Args:
        context: This node.
        options: The site's `nodecheck.options`.
        disable: Checks that the site has switched off: `tasks` for the CPUs, `memory` for memory.
    """

    def __init__(self, context: Context, options: Mapping[str, Mapping[str, Any]], disable: Sequence[str]) -> None:
        self._context = context
        self._checks = {check.name: check for check in registry.select("full", ("tasks", "memory"), disable)}
        self._options = options
        self._before: tuple[int, int, dict[tuple[int, int], int]] | None = None
        self._looks = 0
        self._told: Finding | None = None
        self._low = False

    def look(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the results as of checks, which warn or pass, and lines for the service's own log."""
        here = replace(self._context, shared={})
        log: list[str] = []
        results = [to_json(_CPU, self._cpu(here, log))] if "tasks" in self._checks else []
        if "memory" in self._checks:
            results.append(to_json(_MEMORY, self._memory(here, log)))
        return results, log

    def _cpu(self, here: Context, log: list[str]) -> Finding:
        lines = small_files.read_text(here.path("/proc/stat"), 1 << 16).splitlines()
        times = [int(word) for word in lines[0].split()[1:9]] if lines else [0] * 8
        cpus = sum(line.startswith("cpu") for line in lines[1:])
        total, idle = sum(times), sum(times[3:5])
        found = [process for process in processes.scan(here) if not process.kernel]
        used = {(process.pid, process.started): process.cpu_ticks for process in found}
        before, self._before = self._before, (total, idle, used)
        enough = Finding.passed("cpus_enough", "processes of no job leave the jobs their CPUs")
        if before is None or total <= before[0] or not cpus or not processes.job_managers(here):
            self._looks, self._told = 0, None
            return enough
        window, idle_share = (total - before[0]) / cpus, (idle - before[1]) / (total - before[0])
        load = {p.pid: (p.cpu_ticks - before[2].get((p.pid, p.started), 0)) / window for p in found}
        strangers: list[NodeProcess] = []
        if idle_share < _IDLE_SHARE:
            parents = {process.pid: process.parent for process in found}
            busy = [process for process in found if load[process.pid] >= _SMALL_CPUS]
            strangers = [process for process in busy if not _of_a_job(here, process.pid, parents)]
        theirs = sum(load[process.pid] for process in strangers)
        short = theirs >= max(_LEAST_CPUS, _LEAST_SHARE * cpus)
        # In a row, to begin and to end: a load near the bound is not told again and again.
        self._looks = self._looks + 1 if short is (self._told is None) else 0
        if self._looks >= _LOOKS:
            self._looks = 0
            self._told = self._finding(here, strangers, load, (theirs, cpus, idle_share), log) if short else None
        return self._told or enough

    def _finding(
        self,
        here: Context,
        strangers: list[NodeProcess],
        load: Mapping[int, float],
        numbers: tuple[float, int, float],
        log: list[str],
    ) -> Finding:
        theirs, cpus, idle_share = numbers
        strangers.sort(key=lambda process: -load[process.pid])
        told = [f"{_named(here, p)} {load[p.pid]:.1f} CPUs" for p in strangers[:_MAX_NAMED]]
        log.append(f"processes of no job use CPU that jobs need: {', '.join(told)}")
        sentence = f"processes of no job use {theirs:.1f} of {cpus} CPUs, and {idle_share * 100:.0f} % are idle"
        return Finding.warn("cpu_strangers", f"{sentence}; {_HINT}", _HINT)

    def _memory(self, here: Context, log: list[str]) -> Finding:
        check = self._checks["memory"]
        settings = check.settings(self._options.get("memory", {}))
        facts = check.probe(here, settings)
        # Less memory than the site or Slurm counts with is the prolog's matter: that a job can run is proven here.
        finding = check.judge({**facts, "real_memory_mb": 0, "declared_mb": 0}, {**settings, "expected_mb": 0})
        low, was = finding.reason == "memory_low", self._low
        self._low = low
        if not low:
            return Finding.passed("memory_enough", "memory is available")
        if not was:
            held = [(_rss_kb(here, process.pid), process) for process in processes.scan(here) if not process.kernel]
            held.sort(key=lambda one: -one[0])
            told = [f"{_named(here, process)} {kb >> 10} MiB" for kb, process in held[:_MAX_NAMED]]
            log.append(f"memory is short; most is held by {', '.join(told)}")
        return Finding.warn("memory_low", f"{finding.sentence}; {_HINT}", _HINT)


def _of_a_job(here: Context, pid: int, parents: Mapping[int, int]) -> bool:
    """Return whether a process belongs to a job here: by its control group, its ancestors, or its environment."""
    managers = processes.job_managers(here)
    folder = here.path(f"/proc/{pid}")
    if job_cgroups.job_of(here, small_files.read_text(folder / "cgroup", 4096)) in managers.values():
        return True
    named = _JOB.search(small_files.read_text(folder / "environ", 128 << 10))
    if named and int(named[1]) in managers.values():
        return True
    for _ in range(_MAX_PARENTS):
        if pid in managers:
            return True
        pid = parents.get(pid, 0)
    return False


def _rss_kb(here: Context, pid: int) -> int:
    match = _RSS.search(small_files.read_text(here.path(f"/proc/{pid}/status"), 4096))
    return int(match[1]) if match else 0


def _named(here: Context, process: NodeProcess) -> str:
    """Return a process and its user; only /etc/passwd is asked, since a directory service may not answer."""
    match = _UID.search(small_files.read_text(here.path(f"/proc/{process.pid}/status"), 4096))
    uid = match[1] if match else "?"
    entries = (line.split(":") for line in small_files.read_text(here.path("/etc/passwd"), 1 << 20).splitlines())
    user = next((entry[0] for entry in entries if len(entry) > 2 and entry[2] == uid), f"uid {uid}")
    return f"{printable(process.command)} (pid {process.pid}, user {printable(user)})"
