"""Small files of /sys and /proc: a number, a word, a list of CPUs, the folders of a pattern; never an error."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_robust.nodecheck.engine.context import read_text

_NUMBER = re.compile(r"-?[0-9]{1,18}\Z")
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?\Z")
_MAX_CPUS = 65_536


def word(path: Path, limit: int = 256) -> str:
    """The file's text without blanks around it; empty where it is missing or cannot be read."""
    return read_text(path, limit).strip()


def number(path: Path) -> int | None:
    """The whole number that is all the file says; None for anything else."""
    text = word(path, 64)
    return int(text) if _NUMBER.match(text) else None


def cpus(text: str) -> set[int]:
    """The CPUs (or memory nodes) of a list such as `0-3,8`; parts of another shape are passed over."""
    found: set[int] = set()
    for part in text.strip().split(","):
        match = _RANGE.match(part.strip())
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            found.update(range(first, min(last, first + _MAX_CPUS) + 1))
    return found


def ranges(numbers: set[int]) -> str:
    """The numbers as the kernel writes them: `0-3,8`."""
    parts: list[list[int]] = []
    for value in sorted(numbers):
        if parts and parts[-1][-1] == value - 1:
            parts[-1][1:] = [value]
        else:
            parts.append([value])
    return ",".join("-".join(map(str, part)) for part in parts)


def folders(parent: Path, pattern: str) -> list[Path]:
    """What matches below a folder, by name with numbers in their order; empty where it cannot be listed."""
    try:
        found = list(parent.glob(pattern))
    except OSError:
        return []
    return sorted(found, key=lambda path: [(len(part), part) for part in re.split(r"(\d+)", path.name)])
