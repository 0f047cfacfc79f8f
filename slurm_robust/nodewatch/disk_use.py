"""Is a lost disk in use? It is, if a mounted file system or swap is on it, and no other disk stands in for it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from pathlib import Path

from slurm_robust.nodecheck.sources import mounts, small_files

_STRIPED = ("raid0", "linear")
_PARTITION = r"(?:n\d+)?(?:p?\d+)?"
"""The end of a device's name after the disk's: an NVMe controller's namespace, a partition."""
_MOST = 1024


def in_use(root: Path, disks: Collection[str]) -> bool | None:
    """Return whether a file system or swap is lost with any of these disks (`nvme0`, `sda`); None if unknown."""
    table = mounts.parse(small_files.read_text(root / "proc/self/mountinfo"))
    if not table:
        return None
    names = {mount.source.rsplit("/", 1)[-1] for mount in table if mount.source.startswith("/dev/")}
    for mount in table:
        with contextlib.suppress(OSError, ValueError):
            names.add((root / "sys/dev/block" / mount.device).readlink().name)
    swaps = small_files.read_text(root / "proc/swaps").splitlines()[1:]
    names |= {Path(line.split(" ")[0]).name for line in swaps if line.startswith("/dev/")}
    below = _below(root, names)
    return any(re.fullmatch(re.escape(disk) + _PARTITION, name) for disk in disks for name in below)


def _below(root: Path, names: Collection[str]) -> set[str]:
    """Return these block devices and the devices below that they need; members of a redundant array are left out."""
    found: set[str] = set()
    waiting = sorted(names)
    while waiting and len(found) < _MOST:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        folder = root / "sys/class/block" / name
        level = small_files.word(folder / "md/level")
        if not level or level in _STRIPED:
            waiting += small_files.names(folder / "slaves")
    return found
