"""Making room: the newest verified checkpoints stay, and nothing that somebody may still be writing is touched."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.files import OnBytes
from slurm_robust.checkpoint.find import Entry, entries
from slurm_robust.checkpoint.seals import SEAL_NAME, base, beside, contents
from slurm_robust.checkpoint.seals import read as read_seal
from slurm_robust.checkpoint.trackers import trackers

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
    start looks for it. With fewer good ones than `keep`, nothing is removed. Where not `deep`, size and time of change
    of each file are taken for its bytes.

    Raises:
        CheckpointError: `keep` is below 1, the folder or a tracker cannot be read, or one cannot be removed.
    """
    if keep < 1:
        raise CheckpointError(f"keep {keep}: the last checkpoint is never removed", "Keep 1 or more")
    directory = Path(directory)
    try:
        tracked = {tracker.target: tracker.name for tracker in trackers(directory)}
    except OSError as error:
        raise CheckpointError(f"{directory}: a tracker cannot be read: {error}", "Nothing was removed") from error
    found = entries(directory, deep=deep, on_bytes=on_bytes)
    good = [entry for entry in found if entry.sealed and not entry.problem]
    kept = good[:keep]
    removed, left = [], []
    for entry in found:
        if entry in kept:
            continue
        why = "" if len(kept) == keep else f"there are only {len(kept)} verified ones"
        if not why and entry.step >= kept[-1].step:
            why = entry.problem or "newer than those kept"
        if not why and entry.path in tracked:
            why = f"{tracked[entry.path]} points at it: srobust ckpt latest {directory} --pin"
        if not why and time.time() - _written_at_s(entry) < unfinished_after_s:
            why = "not sealed, and written to lately"
        if why:
            left.append((entry.path, why))
        else:
            removed.append(entry.path)
    if not dry_run:
        for path in removed:
            _remove(path)
        _sweep(directory)
    return Pruned(kept=tuple(entry.path for entry in kept), removed=tuple(removed), left=tuple(left))


def _written_at_s(entry: Entry) -> float:
    """When something that no seal speaks of was last written in it; 0 where there is nothing of the kind."""
    newest = 0.0
    sealed: set[str] = set()
    with contextlib.suppress(CheckpointError):
        seal = read_seal(entry.path)
        sealed = {file.name for file in seal.files} if seal is not None else set()
    with contextlib.suppress(OSError, CheckpointError):
        names = [name for name in contents(entry.path) if name not in sealed]
        newest = 0.0 if sealed else entry.path.stat().st_mtime
        for name in names:
            newest = max(newest, (base(entry.path) / name).stat().st_mtime)
    return newest


def _remove(path: Path) -> None:
    """Out of sight in one rename, then gone: a lookup never sees half of it."""
    doomed = path.with_name(f"{_DOOMED_PREFIX}{path.name}.{os.getpid()}")
    try:
        if path.is_dir():
            path.rename(doomed)
            shutil.rmtree(doomed)
            return
        for name in (SEAL_NAME, "demoted.json", "verified.json"):  # the seal first
            beside(path, name).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be removed: {error}", "Remove it by hand") from error


def _sweep(directory: Path) -> None:
    """What a killed prune left out of sight."""
    for path in directory.glob(f"{_DOOMED_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)
