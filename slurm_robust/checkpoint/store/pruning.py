"""Making room: the newest verified checkpoints stay, and nothing that somebody may still be writing is touched."""

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

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.health import health_log
from slurm_robust.checkpoint.store.checkpoint_files import (
    DEMOTED_NAME,
    SEAL_NAME,
    VERIFIED_NAME,
    beside,
    contents,
    written_at_s,
)
from slurm_robust.checkpoint.store.files import OnBytes
from slurm_robust.checkpoint.store.find import Entry, candidates, entry_of
from slurm_robust.checkpoint.store.seals import Seal
from slurm_robust.checkpoint.store.seals import read as read_seal
from slurm_robust.checkpoint.store.trackers import trackers

_DOOMED_PREFIX = ".srobust-pruning-"


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What `prune` kept and removed (or would), newest first; `kept` are verified ones, `left` the rest that stays."""

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
    """Keep the `keep` newest checkpoints whose bytes were read back and fit, and remove what is older than those.

    Newer ones that are not good, and those written to in the last `unfinished_after_s` by a save that is not sealed,
    stay: somebody may want to see them, or be writing them. So does what a framework's own tracker points at: its next
    start looks for it. And so does the newest that is known to be healthy, and the next that may be. With fewer good
    ones than `keep`, nothing is removed. Where not `deep`, size and time of change of a file are taken for its bytes.

    Reading takes long, and others go on meanwhile. So before each removal all that are kept must still be as they
    were read, the one to go, too, and no tracker may point at that by now; after the rename that takes it out of sight
    it is looked at once more, and comes back where somebody wrote to it or pinned it in between.

    Raises:
        CheckpointError: `keep` is below 1, the folder or a tracker cannot be read, or one cannot be removed.
    """
    if keep < 1:
        raise CheckpointError(f"keep {keep}: the last checkpoint is never removed", "Keep 1 or more")
    directory = Path(directory)
    pointed = _pointed(directory)
    listed = candidates(directory)
    before, unseen = _stands([path for path, _, _ in listed])
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
            why = "a link that leads out of here: what it leads to is not removed"
        if not why and time.time() - _written_at_s(entry.path) < unfinished_after_s:
            why = "not sealed, and written to lately"
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
    """All of them, and the newest `keep` that are good, read back; what goes anyway is not read."""
    found, kept = list[Entry](), list[Entry]()
    for path, seal, problem in listed:
        read = deep and len(kept) < keep
        entry = entry_of(path, seal, problem, deep=read, remember=remember, on_bytes=on_bytes)
        found.append(entry)
        if entry.sealed and not entry.problem and len(kept) < keep:
            kept.append(entry)
    return found, kept


def _remove_all(directory: Path, doomed: list[Path], kept: list[Path], before: dict[Path, _Stand]) -> dict[Path, str]:
    """Remove them, one after the other; which stayed, and why.

    Raises:
        CheckpointError: one cannot be removed; the others are.
    """
    stayed: dict[Path, str] = {}
    failures: list[CheckpointError] = []
    for path in doomed:
        _reached("about to remove", path)
        why = _changed(before, [*kept, path]) or _pointed(directory).get(path, "")
        if not why:
            with _later(failures):
                why = _remove(path, before[path])
        if why:
            stayed[path] = why
    if failures:
        raise failures[0]
    return stayed


@contextlib.contextmanager
def _later(failures: list[CheckpointError]) -> Iterator[None]:
    """What cannot be removed holds up no other: they are to make room all the same."""
    try:
        yield
    except CheckpointError as error:
        failures.append(error)


def _pointed(directory: Path) -> dict[Path, str]:
    """What the frameworks' trackers point at now, and which.

    Raises:
        CheckpointError: one cannot be read.
    """
    try:
        pin = f"points at it: srobust ckpt latest {directory} --pin"
        return {tracker.target: f"{tracker.name} {pin}" for tracker in trackers(directory) if tracker.target}
    except OSError as error:
        why = f"{directory}: a tracker cannot be read: {error}"
        raise CheckpointError(why, "Nothing is removed while nobody can tell what it points at") from error


def _stands(paths: list[Path]) -> tuple[dict[Path, _Stand], dict[Path, str]]:
    """How each of them stands, and why nobody can tell of others."""

    def look(path: Path) -> _Stand | str:
        try:
            return _stand(path)
        except OSError as error:
            return f"cannot be read: {error}"

    found = {path: look(path) for path in paths}
    return (
        {path: one for path, one in found.items() if not isinstance(one, str)},
        {path: one for path, one in found.items() if isinstance(one, str)},
    )


def _reached(point: str, path: Path) -> None:
    """Named points of a prune; tests replace it to have somebody else write just then."""


_Stand = frozenset[tuple[str, int, int, int]]
"""Name, inode, size and time of change of every file of a checkpoint, its seal's and its demotion's, too."""


def _stand(path: Path) -> _Stand:
    """How a checkpoint stands; nothing where it is not there.

    Raises:
        OSError: nobody can tell.
    """
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


def _changed(before: dict[Path, _Stand], paths: list[Path]) -> str:
    """Which of these is not as it was, in words."""
    for path in paths:
        try:
            if _stand(path) == before.get(path):
                continue
        except OSError:  # nobody can tell: nothing is removed for that
            pass
        return f"{path.name} changed meanwhile: prune again"
    return ""


def _written_at_s(path: Path) -> float:
    """When something that no seal speaks of was last written in it; 0 where there is nothing of the kind."""
    sealed: set[str] = set()
    with contextlib.suppress(CheckpointError):
        seal = read_seal(path)
        sealed = {file.name for file in seal.files} if seal is not None else set()
    with contextlib.suppress(OSError, CheckpointError):
        names = [name for name in contents(path) if name not in sealed]
        if names or not sealed:
            return written_at_s(path, names)
    return 0.0


def _remove(path: Path, before: _Stand) -> str:
    """Out of sight in one rename, then gone: a lookup never sees half of it. Why it is still there, or nothing.

    Raises:
        CheckpointError: it cannot be removed.
    """
    doomed = path.with_name(f"{_DOOMED_PREFIX}{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        if path.is_dir():
            path.rename(doomed)
            _reached("out of sight", doomed)
            why = "" if _stand(doomed) == before else "somebody began to write to it: prune again"
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
        return "somebody else removed it"
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be removed: {error}", "Remove it by hand") from error
    return ""


def _drop(doomed: Path) -> None:
    """Remove what is out of sight.

    Raises:
        CheckpointError: something of it is left.
    """
    try:
        shutil.rmtree(doomed)
    except OSError as error:
        what = f"{doomed}: cannot be removed: {error}"
        raise CheckpointError(what, "It is out of sight; the next prune tries again") from error


def _sweep(directory: Path, after_s: float) -> None:
    """What a killed prune left out of sight; not what another is about to remove, or to bring back."""
    for path in directory.glob(f"{_DOOMED_PREFIX}*"):
        host, _, pid = path.name.rpartition(".")
        host = host.rpartition(".")[2]
        with contextlib.suppress(OSError):
            mine = host == socket.gethostname().rpartition(".")[2] and pid.isdecimal()
            dead = mine and int(pid) != os.getpid() and not Path(f"/proc/{pid}").exists()
            if dead or time.time() - path.stat().st_ctime > after_s:
                shutil.rmtree(path, ignore_errors=True)
