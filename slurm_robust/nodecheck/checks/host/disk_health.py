"""What do the local disks say of their own health (SMART, NVMe)?"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state, counters
from slurm_robust.nodecheck.sources import small_files

SMARTCTL = ("/usr/sbin/smartctl", "/usr/local/sbin/smartctl", "/sbin/smartctl", "/usr/bin/smartctl")
"""The places of the program; PATH is not searched."""
_MAX_DISKS = 64
_MAX_ANSWER = 1 << 20
_WARNINGS = {
    0: "its spare blocks run out",
    2: "it is no longer reliable",
    3: "it can only be read",
    4: "its backup power failed",
}
# Sectors that an ATA disk could not read (197), or could not read and gave up (198).
_UNREADABLE = {197, 198}


def _named(context: Context) -> list[str]:
    """Device files of disks that can have such a log: NVMe controllers and SCSI or ATA disks."""
    found = [f"/dev/{folder.name}" for folder in small_files.matching(context.path("/sys/class/nvme"), "nvme[0-9]*")]
    found += [
        f"/dev/{folder.name}"
        for folder in small_files.matching(context.path("/sys/block"), "sd[a-z]*")
        if small_files.number(folder / "removable") != 1 and small_files.number(folder / "size")
    ]
    return found[:_MAX_DISKS]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _in(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def parse(text: str) -> dict[str, Any] | None:
    """Return the judged part of one disk's `smartctl --json`; None if it says nothing of the disk's health."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    passed = _in(said, "smart_status", "passed")
    nvme = _in(said, "nvme_smart_health_information_log")
    disk: dict[str, Any] = {"passed": passed if isinstance(passed, bool) else None}
    for name in ("critical_warning", "available_spare", "available_spare_threshold", "percentage_used", "media_errors"):
        disk[name] = _whole(_in(nvme, name))
    table = _in(said, "ata_smart_attributes", "table")
    unreadable = None
    for row in table if isinstance(table, list) else []:
        value = _whole(_in(row, "raw", "value"))
        if _in(row, "id") in _UNREADABLE and value is not None:
            unreadable = max(unreadable or 0, value)
    disk["unreadable"] = unreadable
    return disk if any(value is not None for value in disk.values()) else None


def _ask(program: str, device: str, timeout_s: float) -> dict[str, Any] | None:
    import subprocess  # noqa: PLC0415 (only this probe's own process pays for it)

    try:
        done = subprocess.run(
            [program, "--json=c", "--nocheck=standby", "-H", "-A", device],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            timeout=max(0.1, timeout_s),
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Its exit status is a set of bits, some of which tell of old errors: the answer itself is read.
    return parse(done.stdout[:_MAX_ANSWER].decode("utf-8", "replace"))


def probe(context: Context, options: Options) -> Facts:
    """Ask each disk; between two full looks no oftener than every few hours."""
    kept = check_state.load(context.cache_dir, check.name)
    boot_id, at_s = context.boot_id(), counters.uptime_s()
    then_s = kept.get("at_s")
    fresh = (
        kept.get("boot_id") == boot_id and isinstance(then_s, (int, float)) and 0 <= at_s - then_s < options["every_s"]
    )
    if context.stage != "full" and fresh:
        return {"asked": False, "again": True}
    program = next((name for name in SMARTCTL if Path(name).is_file()), None) if context.real_root else None
    names = _named(context)
    if program is None or not names or os.geteuid() != 0:
        why = "no local disk" if not names else "smartctl is not installed" if program is None else "only root may ask"
        return {"asked": False, "again": False, "why": why if context.real_root else "a saved tree has no disks to ask"}
    end_s = time.monotonic() + context.deadline_s * 0.8
    disks = {}
    for name in names:
        answer = _ask(program, name, min(5.0, end_s - time.monotonic())) if time.monotonic() < end_s else None
        if answer is not None:
            disks[name] = answer
    counts = {
        f"{name} media_errors": disk["media_errors"] for name, disk in disks.items() if disk["media_errors"] is not None
    }
    return {
        "asked": True,
        "disks": disks,
        "silent": len(names) - len(disks),
        "counts": counts,
        "boot_id": boot_id,
        "at_s": at_s,
        "kept": kept,
    }


def _faults(name: str, disk: Mapping[str, Any], options: Options) -> list[str]:
    said = []
    if disk["passed"] is False:
        said.append(f"{name} says that it is failing")
    bits = disk["critical_warning"] or 0
    said += [f"{name} warns that {words}" for bit, words in _WARNINGS.items() if bits >> bit & 1]
    spare, least = disk["available_spare"], disk["available_spare_threshold"]
    if spare is not None and least is not None and spare < least and not bits & 1:
        said.append(f"{name} has {spare} % of its spare blocks left, {least} are its limit")
    if disk["percentage_used"] is not None and disk["percentage_used"] >= options["warn_used_percent"] > 0:
        said.append(f"{name} has used {disk['percentage_used']} % of its rated life")
    if disk["unreadable"]:
        said.append(f"{name} has {disk['unreadable']} sectors that cannot be read")
    return said


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: the checks of disks and file systems see a disk that has failed."""
    if not facts["asked"]:
        if facts["again"]:
            return Finding.skip("asked_of_late", "the disks were asked recently")
        return Finding.skip("not_asked", f"the disks were not asked: {facts['why']}")
    disks = facts["disks"]
    said = [words for name, disk in disks.items() for words in _faults(name, disk, options)]
    grown = counters.grown(facts)
    said += [
        f"{name.partition(' ')[0]} lost {new.delta} blocks since the last run"
        for name, new in grown.items()
        if new.delta
    ]
    if said:
        remedy = "have the disk replaced at the next maintenance: `smartctl -a` on it says more"
        return Finding.warn("disk_worn", "; ".join(said), remedy, {"disks": disks})
    if not disks:
        return Finding.skip("no_answer", "no disk reports its health here")
    return Finding.passed("disks_healthy", f"{len(disks)} disks call themselves healthy", {"disks": disks})


def remember(facts: Facts, options: Options) -> Facts | None:
    """Counters, and when the disks were asked."""
    return counters.kept(facts) if facts["asked"] else None


check = Check(
    **Check.parts_of(__name__),
    reads="`smartctl --json -H -A` of each local disk, as root, in a process of its own; sleeping disks are not woken",
    cost="10–100 ms a disk",
    deadline_s=20.0,
    options={
        "every_s": Option(
            21_600.0, "seconds after which the periodic stage asks again; `full` always asks", "ours: wear takes weeks"
        ),
        "warn_used_percent": Option(
            100, "share of the rated life from which it warns; 0: never", "NVMe specification: 100 is no failure"
        ),
    },
)
