"""Which files a checkpoint consists of: a folder's, at any depth, or a single one with ours beside it."""

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
"""Names that belong to us and are never part of what is sealed."""
NOT_TEXT = "a name that is no UTF-8: neither a seal nor JSON can hold it"


def beside(path: Path, name: str) -> Path:
    """Where `name` (`seal.json`, …) of the checkpoint at `path` lies: in the folder, or beside the file."""
    return path / name if path.is_dir() else path.with_name(f"{path.name}.{name}")


def base(path: Path) -> Path:
    """The folder that the seal's file names are relative to."""
    return path if path.is_dir() else path.parent


def unsafe(name: str) -> bool:
    """True for a name that would lead out of the folder it is relative to."""
    parts = PurePosixPath(name)
    return not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in name


def is_text(name: str) -> bool:
    """Whether a name that the file system gave is text, and not bytes of some other encoding."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def contents(path: Path) -> list[str]:
    """Names of all files of the checkpoint at `path`, our own apart, sorted.

    Raises:
        CheckpointError: a link leads out of the folder, or nowhere; a name is no text.
        OSError: it, or a folder in it, cannot be listed; a link leads in a circle.
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
    """Nothing, where there is something at `path`.

    Raises:
        CheckpointError: there is not.
        OSError: nobody can tell: a folder above it cannot be entered, links lead in a circle.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{path}: no such checkpoint", f"`srobust ckpt list {path.parent}` shows what is there"
        ) from None


def written_at_s(path: Path, names: Iterable[str]) -> float:
    """When one of these files of the checkpoint at `path`, or the folder itself, last changed; seconds since the epoch.

    Raises:
        OSError: it cannot be looked at.
    """
    newest = path.stat().st_mtime
    for name in names:
        with contextlib.suppress(
            FileNotFoundError
        ):  # its writer renamed it meanwhile, which the folder's own time tells
            newest = max(newest, (base(path) / name).stat().st_mtime)
    return newest


def _check_link(path: Path, link: Path) -> None:
    """Nothing, where it leads to something in the folder.

    Raises:
        CheckpointError: it leads elsewhere, or nowhere.
        OSError: nobody can tell: it leads in a circle, say.
    """
    try:
        link.stat()
    except FileNotFoundError:
        raise CheckpointError(f"{link}: a link that leads nowhere", "Remove it, or bring back what it led to") from None
    if not link.resolve().is_relative_to(path.resolve()):
        raise CheckpointError(f"{link}: a link that leads out of {path}", "Copy what it leads to into the folder")
