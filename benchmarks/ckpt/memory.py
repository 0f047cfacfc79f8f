"""What processes hold, and what is left."""

from __future__ import annotations

import re
from pathlib import Path

_PROC = Path("/proc")


def held_bytes(pid: int) -> int:
    """What a process and those it started hold that is not a file's: anonymous and shared, shared parts once.

    Of pages that it shares with others, forked processes say, its part.
    """
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (stat := _read(entry / "stat")):
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        waiting += parents.get(one, [])
        told = _read(_PROC / str(one) / "smaps_rollup")
        found += sum(map(int, re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+)", told, re.MULTILINE))) << 10
    return found


def available_bytes() -> int:
    """What the node could still give."""
    match = re.search(r"^MemAvailable:\s+(\d+)", _read(_PROC / "meminfo"), re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
