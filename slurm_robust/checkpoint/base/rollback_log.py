"""Records rollbacks from a bad loss, `srobust-rollbacks.json` in the folder of checkpoints.

Every later attempt skips checkpoints that were abandoned by a rollback, and the batches that were read while the loss
became bad.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.errors import CheckpointError

ROLLBACKS_NAME = "srobust-rollbacks.json"
SKIP_VARIABLE = "SROBUST_SKIP_BATCHES"
VERSION = 1


class Rollback(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback of a training from a bad loss.

    Attributes:
        at_s: The time of the rollback, seconds since the epoch; all abandoned checkpoints were written before.
        to_step: The step of the checkpoint that training was rolled back to.
        why: What was bad about the loss.
        first_batch: The first batch to skip; `last_batch` is the last.
    """

    at_s: float
    to_step: int
    why: str
    first_batch: int
    last_batch: int


class RollbackFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file of rollbacks."""

    version: int = VERSION
    rollbacks: tuple[Rollback, ...] = ()


def read(directory: str | Path) -> tuple[Rollback, ...]:
    """Return all rollbacks, oldest first. Raises CheckpointError if the file exists but cannot be read."""
    where = Path(directory) / ROLLBACKS_NAME
    try:
        found = msgspec.json.decode(where.read_bytes(), type=RollbackFile)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{where}: cannot be read: {error}", "It is unknown which checkpoints were abandoned"
        ) from error
    if found.version != VERSION:
        raise CheckpointError(
            f"{where}: has version {found.version}, known is {VERSION}", "Use the version that wrote it"
        )
    return found.rollbacks


def add(directory: str | Path, rollback: Rollback) -> None:
    """Record one more. Raises CheckpointError if the file cannot be written or read."""
    where = Path(directory) / ROLLBACKS_NAME
    book = RollbackFile(rollbacks=(*read(directory), rollback))
    try:
        files.write_atomic(where, msgspec.json.encode(book))
    except OSError as error:
        raise CheckpointError(f"{where}: cannot be written: {error}", "Check free space and permissions") from error


def given_up(rollbacks: Iterable[Rollback], step: int, written_at_s: float) -> str:
    """Return why a checkpoint of this step, written then, was abandoned; empty if it was not."""
    for one in rollbacks:
        if step > one.to_step and written_at_s < one.at_s:
            return f"abandoned: {one.why}, and training was rolled back to step {one.to_step}"
    return ""


class Skipped:
    """Batches to skip. A batch has the number of the step that would read it if none were skipped.

    `ranges` are the first and last batch of each range.
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
        """Return the batch that a step reads: its own number plus the number of batches skipped before."""
        for first, last in self.ranges:
            if step >= first:
                step += last - first + 1
        return step


def skipped(rollbacks: Iterable[Rollback]) -> Skipped:
    """Return all batches to skip."""
    return Skipped((one.first_batch, one.last_batch) for one in rollbacks)


def skipped_batches(directory: str | Path = "") -> Skipped:
    """Return the batches that the data loader must skip, by `srobust run`, else by the record in the folder.

    Raises:
        CheckpointError: the exported list or the folder's record cannot be read.
    """
    reported = os.environ.get(SKIP_VARIABLE)
    if reported is None:
        return skipped(read(directory)) if str(directory) else Skipped()
    try:
        pairs = [part.split("-") for part in reported.split(",") if part]
        return Skipped((int(first), int(last)) for first, last in pairs)
    except ValueError:
        raise CheckpointError(f"{SKIP_VARIABLE} is {reported!r}: not like 1200-1204,3000-3000", "Unset it") from None
