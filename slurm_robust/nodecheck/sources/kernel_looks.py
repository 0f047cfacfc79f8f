"""Looks whether the node itself shows what a line of the kernel log tells: in /sys, /proc and the file system.

A line only says where to look, and alone it is no fault of the node: users can influence what the kernel logs.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.engine.isolate import Task, run_all
from slurm_robust.nodecheck.sources import mounts, small_files

_LOOK_S = 1.0
_GAVE_UP = (errno.EIO, errno.ESHUTDOWN, errno.EUCLEAN, errno.EROFS)
_PAUSES_S = (0.05, 0.2, 0.75, 1.0)
"""The kernel prints first, with all registers on a slow console, and taints or counts then."""
_LATE = frozenset({"oops", "stall", "machine_check", "memory_failure", "memory_corrected"})
_TAINTS = {"oops": 1 << 7 | 1 << 5, "stall": 1 << 14}
"""Bits of /proc/sys/kernel/tainted (tainted-kernels.rst): the kernel died or met a bad page; a soft lockup."""
_TAINTED_BY_MCE = 1 << 4
_CARDS = ("pcie_corrected", "pcie_error", "slot_power", "nic_firmware", "nic_timeout", "gpu_driver")
_DISKS = ("disk_reset", "io_error", "fs_error")
_PCI = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}):[0-9a-f]{2}\.[0-9a-f]")


def tainted(root: Path) -> int | None:
    """Return the kernel's taint since boot; None if it cannot be read."""
    return small_files.count(root / "proc/sys/kernel/tainted")


def unseen(root: Path, seen: Mapping[str, Mapping[str, Any]], before: int) -> list[str]:
    """Return the kinds of `TroubleTally.seen` whose contrary the node shows, also a moment later; as `shown`."""

    def denied(kinds: Collection[str]) -> list[str]:
        looks = {kind: shown(root, kind, seen[kind]["names"], seen[kind]["example"], before) for kind in kinds}
        return sorted(kind for kind, look in looks.items() if look is False)

    found = denied(seen)
    for pause_s in _PAUSES_S:
        if not _LATE.isdisjoint(found):
            time.sleep(pause_s)
            found = denied(found)
    return found


def shown(root: Path, kind: str, names: Collection[str], example: str, before: int) -> bool | None:
    """Return whether the node shows this kind of trouble; None if there is nothing to look at.

    Args:
        root: Folder that stands for `/`.
        kind: One of `kernel_patterns.KINDS`.
        names: The devices that the lines name.
        example: One of the lines.
        before: `tainted` before these lines: a bit that was set before proves nothing.
    """
    if kind == "oops" or (kind == "stall" and "soft lockup" in example):
        return _newly_tainted(root, _TAINTS[kind], before)
    if kind == "memory_failure":
        return _corrupted(root)
    if kind in ("machine_check", "memory_corrected"):
        return _memory(root, kind, example, before)
    if kind == "disk_lost":
        return _disk_lost(root, names)
    if kind in _CARDS:
        return _card_is_there(root, names)
    return _disk_is_there(root, names, example) if kind in _DISKS else None


def _card_is_there(root: Path, names: Collection[str]) -> bool | None:
    """Tell whether a card is there.

    A card that has left its bus has no entry any more, while its bus still has one. Of network devices only addresses
    count: a device that a container has got has no entry in the node's /sys/class/net.
    """
    matches = [match for name in names if (match := _PCI.fullmatch(name))]
    if not matches or not small_files.names(root / "sys/bus/pci/devices"):
        return None
    return any(
        small_files.exists(root / "sys/bus/pci/devices" / match[0])
        or small_files.exists(root / "sys/class/pci_bus" / match[1])
        for match in matches
    )


def _disk_is_there(root: Path, names: Collection[str], example: str) -> bool | None:
    """Tell whether a named disk is there, or gone but still mounted; None if that cannot be told."""
    if not names and example.startswith("SQUASHFS"):
        return _has_squashfs(root)
    places = [root / "sys/class" / kind for kind in ("block", "nvme", "ata_port")]
    if not names or not any(small_files.names(place) for place in places):
        return None
    if any(small_files.exists(place / name) for place in places for name in names if small_files.is_name(name)):
        return True
    table = mounts.parse(small_files.read_text(root / "proc/self/mountinfo", 4 << 20))
    return not {mount.source.rsplit("/", 1)[-1] for mount in table}.isdisjoint(names)


def _has_squashfs(root: Path) -> bool | None:
    """Tell whether the node has a squashfs mounted: the lines of squashfs do not name a disk.

    Without one, a job has brought the image (Apptainer).
    """
    table = mounts.parse(small_files.read_text(root / "proc/self/mountinfo", 4 << 20))
    return any(mount.fstype == "squashfs" for mount in table) if table else None


def _newly_tainted(root: Path, bits: int, before: int) -> bool | None:
    """Tell whether the bit is new; None if it was set before: the kernel sets it once, even if a second oops comes."""
    now = tainted(root)
    return None if before & bits or now is None else bool(now & bits)


def _corrupted(root: Path) -> bool | None:
    found = re.search(r"^HardwareCorrupted: +(\d+)", small_files.read_text(root / "proc/meminfo"), re.MULTILINE)
    return bool(int(found[1])) if found else None


def _memory(root: Path, kind: str, example: str, before: int) -> bool | None:
    """Tell whether EDAC shows the memory error.

    EDAC counts errors that it logs itself; errors that firmware or a bank outside the memory tells may not be counted.
    """
    name = "ce_count" if kind == "memory_corrected" else "ue_count"
    counters = small_files.matching(root / "sys/devices/system/edac/mc", f"mc*/{name}")
    counted = any(small_files.count(path) for path in counters)
    if counted or (kind == "machine_check" and (tainted(root) or 0) & ~before & _TAINTED_BY_MCE):
        return True
    return False if counters and example.startswith("EDAC MC") else None


def _disk_lost(root: Path, names: Collection[str]) -> bool | None:
    """False only where each disk is there and says that it works."""
    for name in names:
        states = (root / "sys/class/nvme" / name / "state", root / "sys/class/block" / name / "device/state")
        faulty = small_files.matching(root / "sys/class/block", f"md*/md/dev-{name}/state")
        said = [small_files.word(path) for path in (*states, *faulty)]
        if not any(said) or any(word and word not in ("live", "running", "in_sync") for word in said):
            return None
    return False if names else None


def broken(root: Path, table: Collection[mounts.Mount], device: str, mount: mounts.Mount) -> list[str]:
    """Return which of `remount_ro` and `fs_shutdown` this mounted disk shows itself.

    After an error the kernel makes the file system read-only and leaves its mounts unchanged; a read-only mount by a
    person changes both. A file system that was shut down answers with an error. A saved tree cannot be asked, and
    counts as shut down.
    """
    found = []
    same = [other for other in table if other.device == mount.device]
    errors = small_files.count(root / "sys/fs/ext4" / device / "errors_count") or 0
    if mount.super_read_only and (errors or not all(other.read_only for other in same)):
        found.append("remount_ro")
    if str(root) != "/" or not _answers(mount.path):
        found.append("fs_shutdown")
    return found


def _answers(path: str) -> bool:
    """Return whether a mounted file system still works, asked in its own process; a hang is not taken for failure."""
    ask: Callable[[], int] = functools.partial(_errno, path)
    outcome = run_all({path: Task(ask, _LOOK_S)})[path]
    return bool(outcome.error) or outcome.value not in _GAVE_UP


def _errno(path: str) -> int:
    """Return the error of writing the file system's log, 0 for none: XFS and ext4 refuse it after a shutdown."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno or 0
    return 0
