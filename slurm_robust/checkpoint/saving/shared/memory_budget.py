"""Does a rank's checkpoint memory fit its node? Asked before the first byte is taken: no OOM kill is to come later."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from slurm_robust.checkpoint.errors import CheckpointError

SPARE_SHARE = 0.03
UNASKED_SPARE_SHARE = 0.1
"""For what nobody asked for: it leaves more to whoever comes later."""
_SPARE_LEAST_BYTES = 64 << 20
_NO_LIMIT = 1 << 60
"""Version 1 of control groups says "no limit" with a number of this size."""


class MemoryLimit(NamedTuple):
    """What may still be taken, and who sets the limit: `the node`, or a control group's folder."""

    left_bytes: int
    limit_bytes: int
    set_by: str


def buffers_bytes(file_bytes: int, slots: int = 2) -> int:
    """What the two buffers of a rank that writes `file_bytes` take, headers apart."""
    return slots * file_bytes


def spare_bytes(limit_bytes: int, share: float = SPARE_SHARE) -> int:
    """What is never taken, so that a page more somewhere else kills nobody."""
    return max(_SPARE_LEAST_BYTES, int(limit_bytes * share))


def refusal(
    needed_bytes: int,
    rooms: list[MemoryLimit],
    whose: str,
    what: str = "the two checkpoint buffers take",
    spare_share: float = SPARE_SHARE,
) -> str:
    """Why so many bytes are not taken, as a sentence; empty where they fit.

    Args:
        needed_bytes: To be taken now.
        rooms: All limits that hold.
        whose: For the sentence: `rank 3`.
        what: For the sentence: what takes them.
        spare_share: Of each limit, kept free.
    """
    for room in rooms:
        spare = spare_bytes(room.limit_bytes, spare_share)
        free_bytes = room.left_bytes - spare
        if needed_bytes > free_bytes:
            return (
                f"{whose}: {what} {_gib(needed_bytes)}, and {room.set_by} has "
                f"{_gib(max(0, free_bytes))} left for them (limit {_gib(room.limit_bytes)}, "
                f"{_gib(spare)} of it kept free)"
            )
    return ""


def memory(total_bytes: int, whose: str, what: str) -> int:
    """Take so much shared memory; its descriptor. This process is the one that pays for its pages.

    Raises:
        CheckpointError: it does not fit.
    """
    if refused := refusal(total_bytes, rooms(), whose, what):
        raise CheckpointError(refused)
    fd = os.memfd_create("srobust-checkpoint", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, total_bytes)
    except OSError as error:
        os.close(fd)
        raise CheckpointError(f"{whose}: {what} {_gib(total_bytes)}, and cannot have them: {error}") from error
    return fd


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


def rooms(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> list[MemoryLimit]:
    """The limits that hold for this process: the node's memory, and every control group above it that has one.

    What cannot be read limits nothing.
    """
    found = []
    memory = _read(proc / "meminfo")
    numbers = {key: int(kib) << 10 for key, kib in re.findall(r"^(\w+):\s+(\d+) kB", memory, re.MULTILINE)}
    if "MemAvailable" in numbers:
        found.append(MemoryLimit(numbers["MemAvailable"], numbers.get("MemTotal", 0), "the node"))
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found += _above(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            found += _above(
                cgroups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            )
    return found


def _above(root: Path, path: str, limit: str, used: str, reclaimable: str) -> list[MemoryLimit]:
    found = []
    names = [name for name in path.split("/") if name and name != ".."]
    for depth in range(len(names), -1, -1):
        folder = root.joinpath(*names[:depth])
        most, now = _number(folder / limit), _number(folder / used)
        if most is None or now is None or most >= _NO_LIMIT:
            continue
        # Cached files give way; a checkpoint that was just written must not keep the next one out.
        match = re.search(rf"^{reclaimable} (\d+)", _read(folder / "memory.stat"), re.MULTILINE)
        found.append(MemoryLimit(most - now + (int(match[1]) if match else 0), most, str(folder)))
    return found


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
