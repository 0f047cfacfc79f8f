"""What a check keeps between two looks: one small JSON file a check, in `nodecheck.cache_dir`.

Root reads and writes these, so a folder or file that somebody else could have put there is not believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

_MAX_BYTES = 1 << 20


def load(folder: Path | None, name: str) -> dict[str, Any]:
    """What was saved; empty where there is nothing, or nothing that can be trusted or read."""
    if folder is None or not _trusted(folder):
        return {}
    try:
        fd = os.open(folder / f"{name}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in _owners():
            return {}
        value = json.loads(os.read(fd, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(fd)
    return value if isinstance(value, dict) else {}


def save(folder: Path, name: str, value: dict[str, Any]) -> bool:
    """Write it in one piece, or not at all; False where that was not possible (no permission, disk full)."""
    part = folder / f".{name}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not _trusted(folder):
            return False
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, json.dumps(value, separators=(",", ":")).encode())
        finally:
            os.close(fd)
        part.rename(folder / f"{name}.json")
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        return False
    return True


def _owners() -> set[int]:
    # An ordinary user may read what root keeps; root believes root only.
    return {0, os.geteuid()} if os.geteuid() else {0}


def _trusted(folder: Path) -> bool:
    try:
        info = folder.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid in _owners() and not info.st_mode & stat.S_IWOTH
