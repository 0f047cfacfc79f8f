"""Small files and folders of /proc and /sys, of which any may be missing, truncated or garbage."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurm_robust.nodecheck.engine.context import read_text

_INTEGER = re.compile(r"-?\d{1,20}\Z", re.ASCII)
_WORD_LIMIT = 256
_NAME = re.compile(r"[^\s/\x00]{1,64}\Z")


def word(path: Path, limit: int = _WORD_LIMIT) -> str:
    """A one-line file's text, printable, with single blanks; empty where it cannot be read."""
    return " ".join("".join(char if char.isprintable() else " " for char in read_text(path, limit)).split())


def integer(text: str) -> int | None:
    """A decimal number of at most 64 bits, None for anything else (`N/A (no PMA)`, half a file)."""
    stripped = text.strip()
    return int(stripped) if _INTEGER.match(stripped) else None


def number(path: Path) -> int | None:
    """The number that stands in a file, None where there is none."""
    return integer(read_text(path, 64))


def count(path: Path) -> int | None:
    """The same for a counter: never below zero."""
    found = number(path)
    return found if found is not None and found >= 0 else None


def hexadecimal(text: str) -> int | None:
    """`0x1003` or `1003` as a number, None for anything else."""
    stripped = text.strip().lower()
    return int(stripped, 16) if re.fullmatch(r"(?:0x)?[0-9a-f]{1,16}", stripped, re.ASCII) else None


def names(folder: Path) -> list[str]:
    """What stands in a folder, in natural order (mlx5_9 before mlx5_10); empty where it cannot be read."""
    try:
        return sorted(filter(is_name, os.listdir(folder)), key=natural)  # noqa: PTH208 (names, and fast)
    except OSError:
        return []


def is_name(text: str) -> bool:
    """True for what can be one part of a path, and is no step out of it."""
    return bool(_NAME.match(text)) and text not in (".", "..")


def natural(text: str) -> list[tuple[int, str]]:
    """Sorts digits within names as numbers."""
    return [
        (int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in re.split(r"(\d{1,18})", text)
    ]


def target(link: Path) -> str:
    """The last part of what a symbolic link points to, empty where it is none."""
    try:
        return os.path.basename(os.readlink(link))  # noqa: PTH115, PTH119 (text of a link, no path to follow)
    except OSError:
        return ""


def exists(path: Path) -> bool:
    """True where something is there and may be seen; unlike `Path.exists`, a folder that is closed raises nothing."""
    return os.path.exists(path)  # noqa: PTH110


def is_folder(path: Path) -> bool:
    """The same for a folder."""
    return os.path.isdir(path)  # noqa: PTH112


def is_gone(path: Path) -> bool:
    """True only where the folder around it can be seen and has no such entry."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return is_folder(path.parent)
    except OSError:
        return False
    return False
