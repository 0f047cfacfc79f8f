"""Seals all complete checkpoints of a folder: for programs whose code cannot be changed."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.base.checkpoint_files import SEAL_NAME, beside, contents, written_at_s
from slurm_robust.checkpoint.base.files import OnBytes
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store.demotion import demotion
from slurm_robust.checkpoint.store.find import candidates
from slurm_robust.checkpoint.store.seals import Seal, seal

SETTLED_S = 600.0
"""Asynchronous writers pause between their files; no known one pauses so long."""


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `seal_all`, newest first.

    Attributes:
        sealed: (path, its new seal).
        waiting: (path, why) of checkpoints that may still be being written: the next sweep retries them.
        refused: (path, why) of checkpoints that are damaged, or of an unknown step.
    """

    sealed: tuple[tuple[Path, Seal], ...] = ()
    waiting: tuple[tuple[Path, str], ...] = ()
    refused: tuple[tuple[Path, str], ...] = ()


def seal_all(directory: str | Path, *, settled_s: float = SETTLED_S, on_bytes: OnBytes | None = None) -> Swept:
    """Seal every checkpoint of `directory` that has no seal, is complete, and was not modified for `settled_s`.

    A checkpoint with a seal is never sealed again: that would hide damage. A demoted one is not sealed either: only a
    person ends a demotion.

    Raises:
        CheckpointError: the folder does not exist, or cannot be listed.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such folder", "Give the folder of checkpoints")
    sealed: list[tuple[Path, Seal]] = []
    waiting: list[tuple[Path, str]] = []
    refused: list[tuple[Path, str]] = []
    for path, old, _ in candidates(directory):
        if old is not None or beside(path, SEAL_NAME).exists():
            continue
        try:
            if why := demotion(path):
                refused.append((path, f"demoted: {why}"))
                continue
            age_s = time.time() - written_at_s(path, contents(path))
            if age_s < settled_s and settled_s:
                ahead = f"its times are {-age_s:.0f} s ahead of this clock: touch its files if no process writes them"
                lately = f"was modified {age_s:.0f} s ago; {settled_s:g} s without changes are required"
                waiting.append((path, lately if age_s >= 0 else ahead))
                continue
            sealed.append((path, seal(path, on_bytes=on_bytes)))
        except (CheckpointError, OSError) as error:
            refused.append((path, error.what if isinstance(error, CheckpointError) else f"cannot be read: {error}"))
    return Swept(sealed=tuple(sealed), waiting=tuple(waiting), refused=tuple(refused))
