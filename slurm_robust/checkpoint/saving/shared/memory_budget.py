"""Does a rank's checkpoint memory fit its node? This is checked before memory is reserved, to avoid an OOM kill."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from slurm_robust.checkpoint.errors import CheckpointError

SPARE_SHARE = 0.03
UNASKED_SPARE_SHARE = 0.1
"""The share that is kept free for memory that the user did not ask for: it leaves more for later."""
_SPARE_LEAST_BYTES = 64 << 20
_NO_LIMIT = 1 << 60
"""cgroup v1 expresses "no limit" as a number of this size."""


class MemoryLimit(NamedTuple):
    """Memory that is still available, and where the limit comes from: `the node`, or a control group's folder."""

    left_bytes: int
    limit_bytes: int
    set_by: str


def spare_bytes(limit_bytes: int, share: float = SPARE_SHARE) -> int:
    """Return the bytes that are always left free, so that small allocations elsewhere do not cause an OOM kill."""
    return max(_SPARE_LEAST_BYTES, int(limit_bytes * share))


def refusal(
    needed_bytes: int,
    limits: list[MemoryLimit],
    whose: str,
    what: str = "the two checkpoint buffers take",
    spare_share: float = SPARE_SHARE,
) -> str:
    """Return why `needed_bytes` do not fit, as a sentence about `whose` (`rank 3`) `what`; empty if they fit.

    `spare_share` of each limit is kept free.
    """
    for limit in limits:
        spare = spare_bytes(limit.limit_bytes, spare_share)
        free_bytes = limit.left_bytes - spare
        if needed_bytes > free_bytes:
            return (
                f"{whose}: {what} {_gib(needed_bytes)}, and {limit.set_by} has "
                f"{_gib(max(0, free_bytes))} left for them (limit {_gib(limit.limit_bytes)}, "
                f"{_gib(spare)} of it kept free)"
            )
    return ""


def memory(total_bytes: int, whose: str, what: str) -> int:
    """Reserve shared memory, accounted to this process; its descriptor. Raises CheckpointError if it does not fit."""
    if refused := refusal(total_bytes, limits(), whose, what):
        raise CheckpointError(refused)
    fd = os.memfd_create("srobust-checkpoint", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, total_bytes)
    except OSError as error:
        os.close(fd)
        raise CheckpointError(f"{whose}: {what} {_gib(total_bytes)}, which cannot be allocated: {error}") from error
    return fd


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


def limits(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> list[MemoryLimit]:
    """Return the limits of this process: the node's memory, and the limits of all control groups above the process.

    A file that cannot be read sets no limit.
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
        # Cached files are evicted on demand: the pages of a checkpoint that was just written count as free.
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
