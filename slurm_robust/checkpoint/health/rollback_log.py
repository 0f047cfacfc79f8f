"""Where a training went back from a loss that went bad, `srobust-rollbacks.json` in its folder of checkpoints.

Two things follow from it for every later attempt: what was saved on the way that was given up is passed over, and the
batches that were read where the loss went bad are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store import files

ROLLBACKS_NAME = "srobust-rollbacks.json"
SKIP_VARIABLE = "SROBUST_SKIP_BATCHES"
VERSION = 1


class Rollback(msgspec.Struct, frozen=True, kw_only=True):
    """One of them.

    Attributes:
        at_s: When, seconds since the epoch; nothing of the way that was given up was written later.
        to_step: Of the checkpoint that training went back to.
        why: What was bad.
        first_batch: Of those to be left out; `last_batch` is one of them, too.
    """

    at_s: float
    to_step: int
    why: str
    first_batch: int
    last_batch: int


class RollbackFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    version: int = VERSION
    rollbacks: tuple[Rollback, ...] = ()


def read(directory: str | Path) -> tuple[Rollback, ...]:
    """All of them, oldest first.

    Raises:
        CheckpointError: the file is there, and cannot be read.
    """
    where = Path(directory) / ROLLBACKS_NAME
    try:
        found = msgspec.json.decode(where.read_bytes(), type=RollbackFile)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{where}: cannot be read: {error}", "Nobody can say what was given up") from error
    if found.version != VERSION:
        raise CheckpointError(
            f"{where}: of version {found.version}, known is {VERSION}", "Use the version that wrote it"
        )
    return found.rollbacks


def add(directory: str | Path, rollback: Rollback) -> None:
    """Write one more down.

    Raises:
        CheckpointError: it cannot be written, or those before it cannot be read.
    """
    where = Path(directory) / ROLLBACKS_NAME
    book = RollbackFile(rollbacks=(*read(directory), rollback))
    try:
        files.write_atomic(where, msgspec.json.encode(book))
    except OSError as error:
        raise CheckpointError(f"{where}: cannot be written: {error}", "Look at free space and permissions") from error


def given_up(rollbacks: Iterable[Rollback], step: int, written_at_s: float) -> str:
    """Why a checkpoint of this step, written then, is of a way that was given up; empty where it is not."""
    for one in rollbacks:
        if step > one.to_step and written_at_s < one.at_s:
            return f"given up: {one.why}, and training went back to step {one.to_step}"
    return ""


class Skipped:
    """Batches to be left out. A batch's number is that of the step that reads it where none is left out.

    Args:
        ranges: First and last of each stretch.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(last, merged[-1][1])
            else:
                merged.append((first, last))
        self.ranges = tuple(merged)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, batch: int) -> bool:
        return any(first <= batch <= last for first, last in self.ranges)

    def __str__(self) -> str:
        return ",".join(f"{first}-{last}" for first, last in self.ranges)

    def batch(self, step: int) -> int:
        """The batch that a step reads: its own number, and so many more as were left out before."""
        for first, last in self.ranges:
            if step >= first:
                step += last - first + 1
        return step


def skipped(rollbacks: Iterable[Rollback]) -> Skipped:
    """All that is left out."""
    return Skipped((one.first_batch, one.last_batch) for one in rollbacks)


def skipped_batches(directory: str | Path = "") -> Skipped:
    """What the data loader is to leave out: what `srobust run` exported, else what the checkpoints' folder says.

    Raises:
        CheckpointError: nobody can tell.
    """
    told = os.environ.get(SKIP_VARIABLE)
    if told is None:
        return skipped(read(directory)) if str(directory) else Skipped()
    try:
        pairs = [part.split("-") for part in told.split(",") if part]
        return Skipped((int(first), int(last)) for first, last in pairs)
    except ValueError:
        raise CheckpointError(f"{SKIP_VARIABLE} is {told!r}: not like 1200-1204,3000-3000", "Unset it") from None
