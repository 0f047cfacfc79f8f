"""What a check keeps between two looks: one small JSON file a check, in `nodecheck.cache_dir`.

Root reads and writes these, so a folder or file that somebody else could have put there is not believed. The folder is
opened once and everything is done in what was opened: a link that takes its place meanwhile leads nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.stages import fast_path
from slurm_robust.nodecheck.stages.cache_conditions import Stale


def load(folder: Path | None, name: str) -> dict[str, Any]:
    """What was saved; empty where there is nothing, or nothing that can be trusted or read."""
    if folder is None:
        return {}
    try:
        value = json.loads(fast_path.read_own(str(folder), f"{name}.json"))
    except (OSError, Stale, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def save(folder: Path, name: str, value: dict[str, Any]) -> bool:
    """Write it in one piece, or not at all; False where that was not possible (no permission, disk full)."""
    return put(folder, f"{name}.json", json.dumps(value, separators=(",", ":")))


def put(folder: Path, file_name: str, text: str) -> bool:
    """As `save`, for a file of any kind."""
    part = f".{file_name}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        inside = fast_path.open_own(str(folder))
    except (OSError, Stale):
        return False
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=inside)
        try:
            data = text.encode("utf-8", "replace")
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
        os.rename(part, file_name, src_dir_fd=inside, dst_dir_fd=inside)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=inside)
        return False
    finally:
        os.close(inside)
    return True


def drop(folder: Path, file_name: str) -> None:
    """Take a file away, where it is there and ours to take."""
    try:
        inside = fast_path.open_own(str(folder))
    except (OSError, Stale):
        return
    with contextlib.suppress(OSError):
        os.unlink(file_name, dir_fd=inside)
    os.close(inside)
