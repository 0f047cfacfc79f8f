"""What else the kernel said: OOM kills, machine checks, I/O errors, hung tasks, file systems gone read-only."""

from __future__ import annotations

import errno
import re
from typing import Any

from slurm_robust.nodecheck import kmsg, mounts, state
from slurm_robust.nodecheck.context import STAGES, Context, read_text
from slurm_robust.nodecheck.finding import Finding, Status
from slurm_robust.nodecheck.registry import Check, Facts, Option, Options

# What each line means. None of these words alone makes a node unfit: a job that eats all memory is killed on a
# healthy node, and corrected machine checks are daily bread. Optical drives, floppies and loop devices are passed over.
_KINDS = {
    "oom_kill": r"(?:Memory cgroup out of memory|Out of memory)[:,].*Kill|oom-kill:",
    "machine_check": r"(?:mce: )?\[Hardware Error\]: .*[Uu]ncorrected|.*\bMachine check: .*[Ff]atal|EDAC \S+: \d+ UE ",
    "memory_failure": r"Memory failure: 0x[0-9a-f]+: .*(?:[Ff]ailed|Ignored)",
    "io_error": r"(?:\w+: )?(?:critical \w+ error|I/O error), dev (?!sr\d|fd\d|loop\d|nbd\d)[\w-]+",
    "hung_task": r"INFO: task .{1,40}:\d+ blocked for more than \d+ seconds",
    "remount_ro": r"(?:EXT[234]-fs|XFS|BTRFS|F2FS-fs)\b.*"
    r"(?:[Rr]emounting filesystem read-only|[Ff]orced? (?:readonly|shutdown)|[Ss]hutting down filesystem)",
}
_ANY = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))
_DEVICE = re.compile(r"\((?:device )?([\w-]+)")
_REMEDIES = {
    "oom_kill": "a job used more memory than there is; nothing is wrong with the node",
    "machine_check": "read `journalctl -k | grep -i 'hardware error'`; have the memory or CPU looked at if it repeats",
    "memory_failure": "a memory page is bad; have the memory looked at if it repeats",
    "io_error": "look at the disk: `smartctl -a` or `nvme smart-log`",
    "hung_task": "a process waited long in the kernel: look for a slow or dead file system",
    "remount_ro": "a file system met an error: drain, run fsck, look at the disk",
}
_MAX_EXAMPLE_CHARS = 200


def booted_at_s(context: Context) -> float | None:
    """When this boot began, where the log is this machine's own; None for a saved one."""
    if not context.real_root or context.cache_dir is None:
        return None
    match = re.search(r"^btime (\d+)$", read_text(context.path("/proc/stat")), re.MULTILINE)
    return float(match[1]) if match else None


def unreadable(facts: Facts, *, needed: bool) -> Finding:
    """The finding for a log that cannot be read: unknown where it is needed, else nothing to look at."""
    status = Status.UNKNOWN if needed else Status.SKIP
    if facts["errno"] in (errno.EPERM, errno.EACCES):
        remedy = "run it as root, or name another log in nodecheck.kmsg" if needed else ""
        return Finding(status, "no_permission", f"the kernel log may not be read: {facts['error']}", remedy)
    remedy = "name the kernel log in nodecheck.kmsg" if needed else ""
    return Finding(status, "no_kernel_log", f"no kernel log to read: {facts['error']}", remedy)


def count(texts: list[str]) -> dict[str, dict[str, Any]]:
    """Lines by kind: how many, one example, and the devices they name."""
    seen: dict[str, dict[str, Any]] = {}
    for text in texts:
        match = _ANY.match(text)
        if match is None or match.lastgroup is None:
            continue
        kind = next(kind for kind in _KINDS if match[kind] is not None)
        entry = seen.setdefault(kind, {"count": 0, "example": text[:_MAX_EXAMPLE_CHARS], "devices": []})
        entry["count"] += 1
        device = _DEVICE.search(text)
        if kind == "remount_ro" and device and device[1] not in entry["devices"]:
            entry["devices"].append(device[1])
    return seen


def probe(context: Context, options: Options) -> Facts:
    """Read what was logged since the last prolog, and which local file systems are read-only now."""
    boot_id = context.boot_id()
    kept = state.load(context.cache_dir, check.name)
    cursor = kept.get("cursor")
    cursor = cursor if isinstance(cursor, dict) else {}
    known = kept.get("read_only") if kept.get("boot_id") == boot_id else None
    if kept.get("boot_id") != boot_id:
        cursor = {key: value for key, value in cursor.items() if key != "seq"}
    log = kmsg.read(context.kmsg, _ANY, cursor, booted_at_s(context))
    table = mounts.parse(read_text(context.path("/proc/self/mountinfo")))
    return {
        "error": log.error,
        "errno": log.errno,
        "boot_id": boot_id,
        "seen": count([record.text for record in log.records]),
        "known": known if isinstance(known, list) else [],
        "read_only": sorted({m.source.rsplit("/", 1)[-1] for m in table if m.super_read_only}),
        "cursor": dict(log.cursor) if context.stage in ("prolog", "epilog") else cursor,
    }


def _gone_read_only(facts: Facts) -> list[str]:
    """Devices that an error made read-only, now or at an earlier look, and that still are."""
    said = {*facts["known"], *facts["seen"].get("remount_ro", {}).get("devices", ())}
    return sorted(said & set(facts["read_only"]))


def judge(facts: Facts, options: Options) -> Finding:
    """Fails only for a file system that went read-only by an error and still is; the rest is told."""
    if facts["error"]:
        return unreadable(facts, needed=False)
    still = [] if "remount_ro" in options["ignore"] else _gone_read_only(facts)
    if still:
        sentence = f"file system on {', '.join(still)} went read-only after an error"
        return Finding(Status.FAIL, "remount_ro", sentence, _REMEDIES["remount_ro"], {"seen": facts["seen"]})
    seen = {kind: entry for kind, entry in facts["seen"].items() if kind not in options["ignore"]}
    if not seen:
        return Finding(Status.PASS, "quiet", "the kernel log shows no trouble since the last look")
    worst = next(kind for kind in reversed(_KINDS) if kind in seen)
    said = ", ".join(f"{kind} ×{entry['count']}" for kind, entry in seen.items())
    return Finding(Status.WARN, worst, f"kernel log since the last look: {said}", _REMEDIES[worst], {"seen": seen})


def remember(facts: Facts, options: Options) -> Facts | None:
    """Where the next look goes on, and what is read-only by an error."""
    if facts["error"]:
        return None
    return {"boot_id": facts["boot_id"], "cursor": facts["cursor"], "read_only": _gone_read_only(facts)}


check = Check(
    name="kernel_log",
    question="Has the kernel reported trouble with memory, disks or file systems since the last prolog?",
    reads="the kernel log (`nodecheck.kmsg`), /proc/self/mountinfo",
    cost="one pass over the kernel log, 1–20 ms",
    stages=STAGES,
    probe=probe,
    judge=judge,
    lane="kernel_log",
    log_words=("emounting", "forced", "Forced", "orce shutdown", "hutting down"),
    remember=remember,
    options={"ignore": Option([], f"list of kinds that are passed over: {', '.join(_KINDS)}", "ours: none is")},
)
