"""Reads small files of /proc and /sys, which may be missing, truncated or garbage; nothing here raises."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurm_robust.core.text import printable

_INTEGER = re.compile(r"-?\d{1,20}\Z", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?\Z")
_MAX_CPUS = 65_536
_NAME = re.compile(r"[^\s/\x00]{1,64}\Z")


def read_text(path: Path, limit: int = 1 << 20) -> str:
    """Return the file's text; empty if it is missing or cannot be read. Bad bytes are replaced."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def text(path: Path, limit: int = 256) -> str:
    """Return the file's text without blanks around it."""
    return read_text(path, limit).strip()


def word(path: Path, limit: int = 256) -> str:
    """Return the text of a file of one line: printable, with single blanks."""
    return " ".join(printable(read_text(path, limit), " ").split())


def integer(digits: str) -> int | None:
    """Return a decimal number of at most 64 bits, None for anything else (`N/A (no PMA)`, half a file)."""
    stripped = digits.strip()
    return int(stripped) if _INTEGER.match(stripped) else None


def number(path: Path) -> int | None:
    """Return the number in a file that holds nothing else; None for anything else."""
    return integer(read_text(path, 64))


def count(path: Path) -> int | None:
    """Return the number in a counter's file; None for anything else, and for a number below zero."""
    found = number(path)
    return found if found is not None and found >= 0 else None


def hexadecimal(digits: str) -> int | None:
    """Return `0x1003` or `1003` as a number, None for anything else."""
    stripped = digits.strip().lower()
    return int(stripped, 16) if re.fullmatch(r"(?:0x)?[0-9a-f]{1,16}", stripped, re.ASCII) else None


def names(folder: Path) -> list[str]:
    """Return the entries of a folder, in natural order (mlx5_9 before mlx5_10); empty if it cannot be read."""
    try:
        return sorted(filter(is_name, os.listdir(folder)), key=natural)  # noqa: PTH208 (names, and fast)
    except OSError:
        return []


def matching(parent: Path, pattern: str) -> list[Path]:
    """Return the paths below a folder that match a pattern, shorter names first; empty if it cannot be listed."""
    try:
        found = list(parent.glob(pattern))
    except OSError:
        return []
    return sorted(found, key=lambda path: [(len(part), part) for part in re.split(r"(\d+)", path.name)])


def is_name(name: str) -> bool:
    """True for one part of a path that does not lead out of its folder."""
    return bool(_NAME.match(name)) and name not in (".", "..")


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares digits within names as numbers."""
    return [
        (int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in re.split(r"(\d{1,18})", name)
    ]


def target(link: Path) -> str:
    """Return the last part of a symbolic link's target; empty for anything else."""
    try:
        return os.path.basename(os.readlink(link))  # noqa: PTH115, PTH119 (text of a link, no path to follow)
    except OSError:
        return ""


def exists(path: Path) -> bool:
    """Return whether it exists and may be seen; unlike `Path.exists`, a closed folder raises nothing."""
    return os.path.exists(path)  # noqa: PTH110


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder."""
    return os.path.isdir(path)  # noqa: PTH112


def is_gone(path: Path) -> bool:
    """True only where its folder can be read and has no such entry."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return is_folder(path.parent)
    except OSError:
        return False
    return False


def cpus(listed: str) -> set[int]:
    """Return the CPUs (or memory nodes) of a list such as `0-3,8`; other parts are ignored."""
    found: set[int] = set()
    for part in listed.strip().split(","):
        match = _RANGE.match(part.strip())
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            found.update(range(first, min(last, first + _MAX_CPUS) + 1))
    return found


def ranges(numbers: set[int]) -> str:
    """Return the numbers as the kernel writes them: `0-3,8`."""
    parts: list[list[int]] = []
    for value in sorted(numbers):
        if parts and parts[-1][-1] == value - 1:
            parts[-1][1:] = [value]
        else:
            parts.append([value])
    return ",".join("-".join(map(str, part)) for part in parts)
