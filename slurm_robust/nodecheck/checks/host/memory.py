"""Does the node have the memory that Slurm and the site think it has?"""

from __future__ import annotations

import re

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import processes, slurm_conf, small_files

_ARCSTATS = "/proc/spl/kstat/zfs/arcstats"
_ARC = re.compile(r"^(size|c_min) +\d +(\d{1,18})$", re.MULTILINE)
_LINE = re.compile(r"^(\w+): +(\d+) kB$", re.MULTILINE)


def probe(context: Context, options: Options) -> Facts:
    """Read the figures of /proc/meminfo, in kB as the kernel has them."""
    table = {name: int(value) for name, value in _LINE.findall(small_files.read_text(context.path("/proc/meminfo")))}
    wanted = ("MemTotal", "MemAvailable", "HardwareCorrupted")
    facts: Facts = {name: table[name] for name in wanted if name in table}
    facts["real_memory_mb"] = context.real_memory_mb
    # Pages set aside as huge are used by design.
    facts["huge_kb"] = table.get("Hugetlb", 0)
    if "MemAvailable" in facts:
        facts["MemAvailable"] += _cache_of_zfs_kb(context)
    facts["declared_mb"] = 0 if context.real_memory_mb else slurm_conf.declared(context, slurm_conf.memory_mb)
    idle = context.stage in ("periodic", "full") and not processes.job_managers(context)
    facts["idle"] = idle and any(process.command == "slurmd" for process in processes.scan(context))
    return facts


def _cache_of_zfs_kb(context: Context) -> int:
    """Return the memory that ZFS gives back on demand; the kernel does not count it as available."""
    said = {name: int(value) for name, value in _ARC.findall(small_files.read_text(context.path(_ARCSTATS), 1 << 16))}
    return max(0, said.get("size", 0) - said.get("c_min", 0)) >> 10


def _missing(facts: Facts, options: Options, total_mb: int) -> Finding | None:
    """Return a finding if the node has less memory than the site or Slurm counts."""
    expected_mb = options["expected_mb"] or facts["real_memory_mb"]
    if expected_mb and total_mb < expected_mb * options["min_share"]:
        sentence = f"the node has {total_mb} MiB of memory, {expected_mb} are expected"
        return Finding.fail("memory_missing", sentence, "look for a failed module: `dmidecode -t memory`", facts)
    if not expected_mb and total_mb < facts["declared_mb"] * options["min_share"]:
        sentence = f"the node has {total_mb} MiB of memory, slurm.conf gives it {facts['declared_mb']}"
        remedy = "look for a failed module: `dmidecode -t memory`; compare `slurmd -C` with slurm.conf"
        return Finding.warn("memory_below_slurm_s", sentence, remedy, facts)
    return None


def judge(facts: Facts, options: Options) -> Finding:
    """Fail if the memory of a module is missing."""
    if "MemTotal" not in facts:
        return Finding.unknown("no_meminfo", "/proc/meminfo names no MemTotal", "is /proc mounted?", facts)
    total_mb = facts["MemTotal"] // 1024
    if (missing := _missing(facts, options, total_mb)) is not None:
        return missing
    if facts.get("HardwareCorrupted", 0) > 0:
        sentence = f"{facts['HardwareCorrupted']} kB of memory are bad and set aside"
        return Finding.warn("memory_corrupted", sentence, "have the memory looked at if it grows", facts)
    available = facts.get("MemAvailable")
    free_kb = facts["MemTotal"] - facts["huge_kb"]
    if available is not None and available < free_kb * options["warn_available_share"]:
        sentence = f"{available // 1024} of {total_mb} MiB of memory are available"
        return Finding.warn("memory_low", sentence, "look for leftovers of finished jobs", facts)
    held = free_kb - available if available is not None and facts["idle"] else 0
    if held > facts["MemTotal"] * options["warn_idle_used_share"] > 0:
        sentence = f"{held // 1024} of {total_mb} MiB of memory are in use, and no job runs here"
        remedy = "look for leftovers: processes, /dev/shm, tmpfs mounts, what a driver holds (`slabtop`)"
        return Finding.warn("memory_held", sentence, remedy, facts)
    return Finding.passed("memory_present", f"{total_mb} MiB of memory", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/meminfo, ZFS's arcstats; slurm.conf and whether a job runs (/proc/*/stat), not in prolog and epilog",
    cost="one read, under 1 ms",
    lane="files",
    options={
        "expected_mb": Option(0, "MiB it must have; 0: `--real-memory-mb`, or slurm.conf's, which only warns", "ours"),
        "min_share": Option(
            0.95,
            "share of the expected memory below which it fails",
            "the kernel keeps about 2 %; one module of 16 is 6 %",
        ),
        "warn_idle_used_share": Option(
            0.25, "share in use, where slurmd runs no job, above which it warns; 0: never", "ours: caches do not count"
        ),
        "warn_available_share": Option(0.02, "available share below which it warns", "ours"),
    },
)
