"""Lists the files of a checkpoint: a folder's files at any depth, or a single file with our own files beside it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from slurm_robust.checkpoint.errors import CheckpointError

SEAL_NAME, DEMOTED_NAME, VERIFIED_NAME = "seal.json", "demoted.json", "verified.json"
"""Our own files in a checkpoint's folder, or beside a single file `F` as `F.seal.json`."""
OWN_FILES = re.compile(
    r"(seal|demoted|verified)\.json\Z|part-\d+\.json\Z|\..*\.tmp\Z|.*\.(seal|demoted|verified)\.json\Z"
)
"""Names of our own files, which are never sealed."""
CHECK_DISK = "Check free space, quota and permissions (df -h, lfs quota); the previous checkpoint is untouched"
NOT_TEXT = "a name that is not UTF-8: neither a seal nor JSON can contain it"


def beside(path: Path, name: str) -> Path:
    """Return the path of `name` (`seal.json`, …) for the checkpoint at `path`: in the folder, or beside the file."""
    return path / name if path.is_dir() else path.with_name(f"{path.name}.{name}")


def part_path(folder: Path, number: int) -> Path:
    """Return the path of the note that a rank, or a node, leaves of its share until the checkpoint is sealed."""
    return folder / f"part-{number:05d}.json"


def base(path: Path) -> Path:
    """Return the folder to which the seal's file names are relative."""
    return path if path.is_dir() else path.parent


def unsafe(name: str) -> bool:
    """True for a name that points outside of its folder."""
    parts = PurePosixPath(name)
    return not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in name


def is_text(name: str) -> bool:
    """Return whether a file name is valid UTF-8."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def contents(path: Path) -> list[str]:
    """Names of all files of the checkpoint at `path` except our own, sorted.

    Raises:
        CheckpointError: a link is broken, or points outside of the folder; a name is not UTF-8.
        OSError: it, or a folder in it, cannot be listed; a link is circular.
    """
    if not path.is_dir():
        return [path.name]
    names: list[str] = []
    todo = [""]
    while todo:
        where = todo.pop()
        with os.scandir(path / where) as listing:
            for entry in listing:
                name = f"{where}{entry.name}"
                if entry.is_symlink():
                    _check_link(path, path / name)
                if entry.is_dir(follow_symlinks=False):
                    todo.append(f"{name}/")
                elif entry.is_file() and not OWN_FILES.match(entry.name):
                    if not is_text(name):
                        raise CheckpointError(f"{path / name}: {NOT_TEXT}", "Rename it, or move it away")
                    names.append(name)
    return sorted(names)


def require(path: Path) -> None:
    """Check that `path` exists.

    Raises:
        CheckpointError: it does not.
        OSError: that is unknown: a folder above it cannot be entered, or links are circular.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{path}: no such checkpoint", f"`srobust ckpt list {path.parent}` lists the checkpoints"
        ) from None


def written_at_s(path: Path, names: Iterable[str]) -> float:
    """Return when one of these files of the checkpoint at `path`, or the folder itself, last changed; epoch seconds.

    Raises:
        OSError: the folder or a file cannot be read.
    """
    newest = path.stat().st_mtime
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # renamed by its writer: the folder has the time of that
            newest = max(newest, (base(path) / name).stat().st_mtime)
    return newest


def _check_link(path: Path, link: Path) -> None:
    """Check that a link points to a file in the folder; CheckpointError if not, OSError if it is circular."""
    try:
        link.stat()
    except FileNotFoundError:
        raise CheckpointError(f"{link}: a broken link", "Remove it, or restore its target") from None
    if not link.resolve().is_relative_to(path.resolve()):
        raise CheckpointError(f"{link}: a link to outside of {path}", "Copy its target into the folder")
