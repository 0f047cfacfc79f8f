"""Tells whether a disk that ranks reported as full is still full: a new attempt would then fail like the last one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_PATIENCE_S = 10.0
_LEAST_BYTES = 64 << 20
"""The least free space, if no checkpoint shows how much is needed."""
_PROBE_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MAX_FILES = 20000
_OUTPUT = re.compile(r"out|sav|ckpt|check[-_]?point|result|exper|runs?\b|work", re.IGNORECASE)
"""Matches words of a command that name its output: a full disk that is only read from does not matter."""


async def full(named: str, checkpoint: Path | None, checkpoint_dir: str, command: Sequence[str] = ()) -> str:
    """Return which disk cannot take the next checkpoint, and what to do; empty if all can, or if it is not known.

    The disks are checked from this node. A file system that hangs must not delay a recovery.

    `named` is the path in a rank's last lines, `checkpoint` the newest checkpoint: the next one will need as much room.
    Words of the training's `command` may name the folder that it writes to.
    """
    checked = asyncio.to_thread(_full, named, checkpoint, checkpoint_dir, command)
    try:
        return await asyncio.wait_for(checked, _PATIENCE_S)
    except asyncio.TimeoutError:
        return ""


def _written_to(command: Iterable[str]) -> Iterator[Path]:
    """Yield folders in the words of a command that look like its output (`--out_dir=DIR`, `bash -c '… DIR'`)."""
    for word in (part.strip("'\"") for text in command for part in text.split()):
        path = Path(word.partition("=")[2] if word.startswith("-") else word)
        with contextlib.suppress(OSError, ValueError):
            if _OUTPUT.search(word) and path.is_dir() and os.access(path, os.W_OK):
                yield path.absolute()


def _full(named: str, checkpoint: Path | None, checkpoint_dir: str, command: Sequence[str]) -> str:
    own = Path(checkpoint_dir).absolute()
    reported = [Path(named)] if named.startswith("/") else []
    # The working folder last: by default programs write their checkpoints below it.
    for path in dict.fromkeys((*reported, own, *_written_to(command), Path.cwd())):
        folder, ours, why = path, False, ""
        with contextlib.suppress(OSError):  # no permission, or a broken mount
            folder = next(p for p in (path, *path.parents) if p.is_dir())
            ours = bool(checkpoint_dir) and folder == own
            why = _no_room(folder, _size(checkpoint) if checkpoint is not None and ours else 0)
        if why:
            prune = f", old checkpoints for example (srobust ckpt prune {folder} --keep 2)" if ours else ""
            return f"{folder} is full ({why}). Free space there{prune}, then submit the job again"
    return ""


def _no_room(folder: Path, needed_bytes: int) -> str:
    found = os.statvfs(folder)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free < (needed_bytes or min(_LEAST_BYTES, total // 2)):
        wanted = f", a checkpoint takes {_size_text(needed_bytes)}" if needed_bytes else ""
        return f"{_size_text(free)} of {_size_text(total)} free{wanted}"
    if found.f_files and not found.f_favail:
        return "no inode is free"
    # A quota does not show in the free space of the file system.
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".srobust-room-") as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        if error.errno in _FULL:
            return "a quota is used up" if error.errno == errno.EDQUOT else os.strerror(error.errno)
    return ""


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    total = 0
    for number, file in enumerate(path.rglob("*")):
        if number >= _MAX_FILES:
            break
        with contextlib.suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _size_text(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
