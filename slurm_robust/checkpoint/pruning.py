"""Removes old checkpoints; keeps the newest verified ones, and everything that may still be being written."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.base.checkpoint_files import (
    DEMOTED_NAME,
    SEAL_NAME,
    VERIFIED_NAME,
    beside,
    contents,
    written_at_s,
)
from slurm_robust.checkpoint.base.files import OnBytes
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.health import health_log
from slurm_robust.checkpoint.store.find import Entry, candidates, entry_of
from slurm_robust.checkpoint.store.seals import Seal
from slurm_robust.checkpoint.store.seals import read as read_seal
from slurm_robust.checkpoint.store.trackers import trackers

_DOOMED_PREFIX = ".srobust-pruning-"


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `prune`, newest first: `kept` are verified, `removed` are (or would be) gone, `left` are others."""

    kept: tuple[Path, ...]
    removed: tuple[Path, ...]
    left: tuple[tuple[Path, str], ...]


def prune(
    directory: str | Path,
    keep: int,
    *,
    unfinished_after_s: float = 3600.0,
    dry_run: bool = False,
    deep: bool = True,
    on_bytes: OnBytes | None = None,
) -> Pruned:
    """Keep the `keep` newest checkpoints whose bytes match their seals, and remove older ones.

    These stay, too: newer checkpoints that are not good; unsealed checkpoints modified in the last
    `unfinished_after_s`, which may still be being written; the targets of the frameworks' own trackers, which their
    next start needs; the newest checkpoint that is known to be healthy, and the next that may become healthy. With
    fewer good checkpoints than `keep`, nothing is removed. If not `deep`, a file with the sealed size and time of
    change counts as matching.

    Reading takes long, and other processes may write meanwhile. So before each removal, the checkpoints to keep and the
    one to remove must be unchanged since they were read, and no tracker may point at the one to remove. That checkpoint
    is hidden by a rename, checked once more, and renamed back if it was modified or pinned in between.

    Raises:
        CheckpointError: `keep` is below 1, the folder or a tracker cannot be read, or a checkpoint cannot be removed.
    """
    if keep < 1:
        raise CheckpointError(f"keep {keep}: the last checkpoint is never removed", "Keep 1 or more")
    directory = Path(directory)
    pointed = _pointed(directory)
    listed = candidates(directory)
    before, unseen = _all_file_states([path for path, _, _ in listed])
    found, kept = _choose(listed, keep, on_bytes, deep=deep, remember=not dry_run)
    spared = {**health_log.worth_keeping(directory, found), **unseen, **pointed}
    removed, left = [], []
    for entry in found:
        if entry in kept:
            continue
        why = "" if len(kept) == keep else f"there are only {len(kept)} verified ones"
        if not why and entry.step >= kept[-1].step:
            same = "of the same step as one that is kept"
            why = entry.problem or ("newer than those kept" if entry.step > kept[-1].step else same)
        if not why:
            why = spared.get(entry.path, "")
        if not why and entry.path.is_symlink():
            why = "a link to another folder: its target is not removed"
        if not why and time.time() - _written_at_s(entry.path) < unfinished_after_s:
            why = "not sealed, and modified recently"
        if why:
            left.append((entry.path, why))
        else:
            removed.append(entry.path)
    if not dry_run:
        stayed = _remove_all(directory, removed, [entry.path for entry in kept], before)
        removed = [path for path in removed if path not in stayed]
        left += stayed.items()
        _sweep(directory, unfinished_after_s)
    return Pruned(kept=tuple(entry.path for entry in kept), removed=tuple(removed), left=tuple(left))


def _choose(
    listed: list[tuple[Path, Seal | None, str]], keep: int, on_bytes: OnBytes | None, *, deep: bool, remember: bool
) -> tuple[list[Entry], list[Entry]]:
    """Return all checkpoints, and the newest `keep` good ones; checkpoints to remove are not read."""
    found, kept = list[Entry](), list[Entry]()
    for path, seal, problem in listed:
        read = deep and len(kept) < keep
        entry = entry_of(path, seal, problem, deep=read, remember=remember, on_bytes=on_bytes)
        found.append(entry)
        if entry.sealed and not entry.problem and len(kept) < keep:
            kept.append(entry)
    return found, kept


def _remove_all(
    directory: Path, doomed: list[Path], kept: list[Path], before: dict[Path, _FileStates]
) -> dict[Path, str]:
    """Remove them one by one; which were not removed, and why. CheckpointError, at the end, if removing one failed."""
    stayed: dict[Path, str] = {}
    failures: list[CheckpointError] = []
    for path in doomed:
        _reached("about to remove", path)
        why = _changed(before, [*kept, path]) or _pointed(directory).get(path, "")
        if not why:
            with _collected(failures):
                why = _remove(path, before[path])
        if why:
            stayed[path] = why
    if failures:
        raise failures[0]
    return stayed


@contextlib.contextmanager
def _collected(failures: list[CheckpointError]) -> Iterator[None]:
    """Continue with the next one after a failure, to free as much space as possible."""
    try:
        yield
    except CheckpointError as error:
        failures.append(error)


def _pointed(directory: Path) -> dict[Path, str]:
    """Target of each of the frameworks' trackers → the reason to keep it; CheckpointError if one cannot be read."""
    try:
        pin = f"points at it: srobust ckpt latest {directory} --pin"
        return {tracker.target: f"{tracker.name} {pin}" for tracker in trackers(directory) if tracker.target}
    except OSError as error:
        why = f"{directory}: a tracker cannot be read: {error}"
        raise CheckpointError(why, "Nothing is removed until its target is known") from error


def _all_file_states(paths: list[Path]) -> tuple[dict[Path, _FileStates], dict[Path, str]]:
    """Return the state of each checkpoint, and why others cannot be read."""

    def read(path: Path) -> _FileStates | str:
        try:
            return _file_states(path)
        except OSError as error:
            return f"cannot be read: {error}"

    found = {path: read(path) for path in paths}
    return (
        {path: one for path, one in found.items() if not isinstance(one, str)},
        {path: one for path, one in found.items() if isinstance(one, str)},
    )


def _reached(point: str, path: Path) -> None:
    """Named points of a prune; tests replace it to write at that moment."""


_FileStates = frozenset[tuple[str, int, int, int]]
"""Name, inode, size and time of change of every file of a checkpoint, its seal's and its demotion's, too."""


def _file_states(path: Path) -> _FileStates:
    """Return the state of a checkpoint's files; empty if it does not exist. Raises OSError if it cannot be read."""
    found: set[tuple[str, int, int, int]] = set()
    todo = [path, *(() if path.is_dir() else (beside(path, name) for name in (SEAL_NAME, DEMOTED_NAME)))]
    while todo:
        where = todo.pop()
        try:
            now = where.lstat()
            if stat.S_ISDIR(now.st_mode):
                todo += (inside for inside in where.iterdir() if VERIFIED_NAME not in inside.name)
                now = None
        except FileNotFoundError:
            continue
        name = os.path.relpath(where, path)
        found.add((name, now.st_ino, now.st_size, now.st_mtime_ns) if now is not None else (name, 0, 0, 0))
    return frozenset(found)


def _changed(before: dict[Path, _FileStates], paths: list[Path]) -> str:
    """Return a sentence about the first of these that has changed; empty if none has."""
    for path in paths:
        try:
            if _file_states(path) == before.get(path):
                continue
        except OSError:  # counts as changed: nothing is removed
            pass
        return f"{path.name} was modified meanwhile: prune again"
    return ""


def _written_at_s(path: Path) -> float:
    """Return when a file outside of the seal was last modified; 0 if there is no such file."""
    sealed: set[str] = set()
    with contextlib.suppress(CheckpointError):
        seal = read_seal(path)
        sealed = {file.name for file in seal.files} if seal is not None else set()
    with contextlib.suppress(OSError, CheckpointError):
        names = [name for name in contents(path) if name not in sealed]
        if names or not sealed:
            return written_at_s(path, names)
    return 0.0


def _remove(path: Path, before: _FileStates) -> str:
    """Hide it by one rename, then remove it: a lookup never sees half of it. Why it was not removed, or nothing."""
    doomed = path.with_name(f"{_DOOMED_PREFIX}{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        if path.is_dir():
            path.rename(doomed)
            _reached("out of sight", doomed)
            why = "" if _file_states(doomed) == before else "it was modified meanwhile: prune again"
            why = why or _pointed(path.parent).get(path, "")
            if why and not path.exists():
                doomed.rename(path)
                return why
            _drop(doomed)
            return ""
        for name in (SEAL_NAME, DEMOTED_NAME, VERIFIED_NAME):  # the seal first
            beside(path, name).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    except FileNotFoundError:
        return "another process removed it"
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be removed: {error}", "Remove it by hand") from error
    return ""


def _drop(doomed: Path) -> None:
    """Remove a hidden one. Raises CheckpointError if some of its files remain."""
    try:
        shutil.rmtree(doomed)
    except OSError as error:
        what = f"{doomed}: cannot be removed: {error}"
        raise CheckpointError(what, "It is already hidden; the next prune tries again") from error


def _sweep(directory: Path, after_s: float) -> None:
    """Remove what a killed prune left hidden; not what a running one is about to remove or to restore."""
    for path in directory.glob(f"{_DOOMED_PREFIX}*"):
        host, _, pid = path.name.rpartition(".")
        host = host.rpartition(".")[2]
        with contextlib.suppress(OSError):
            mine = host == socket.gethostname().rpartition(".")[2] and pid.isdecimal()
            dead = mine and int(pid) != os.getpid() and not Path(f"/proc/{pid}").exists()
            if dead or time.time() - path.stat().st_ctime > after_s:
                shutil.rmtree(path, ignore_errors=True)
