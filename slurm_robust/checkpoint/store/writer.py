"""Writing a checkpoint so that a kill at any instant leaves the one before it chosen."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store import files, seals
from slurm_robust.checkpoint.store.seals import FileSeal

_SHOW = "Check free space, quota and permissions (df -h, lfs quota); the previous checkpoint is untouched"


def folder_name(step: int) -> str:
    """The folder of a step's checkpoint."""
    return f"step-{step:08d}"


def save(
    directory: str | Path,
    step: int,
    state: Mapping[str, Any],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    barrier: Callable[[], None] | None = None,
    required: bool = True,
    program: str = "",
) -> bool:
    """Write this rank's `state`, verify it, and (rank 0, once every rank has) seal the checkpoint of `step`.

    All ranks call it. Each writes one file, flushes it, reads it back and compares digests; rank 0 writes the seal
    last. Until that rename the checkpoint is never chosen, also where the same step was saved before: that one's files
    stay until the new seal stands.

    Args:
        directory: Where checkpoints are kept; made if it is not there.
        step: The last step that `state` includes.
        state: What torch.save takes.
        rank: This rank; torch.distributed's where it is up, else 0.
        world_size: Ranks that call it; as `rank`, else 1.
        barrier: Called twice by each rank where there are several; torch.distributed's where it is up.
        required: False: a save that fails says so on stderr and training goes on.
        program: What wrote it, for the seal; slurm-robust and its version if empty.

    Returns:
        True: it is sealed. False, only where not `required`: it is not.

    Raises:
        CheckpointError: the same, where `required`, on every rank.
    """
    rank, world_size, barrier = _group(rank, world_size, barrier)
    folder = Path(directory) / folder_name(step)
    failure: CheckpointError | None = None
    part: FileSeal | None = None
    try:
        part = _write_part(folder, rank, state)
    except CheckpointError as error:
        failure = error
    # A rank that failed meets the others all the same: they must not wait for it for ever.
    barrier()
    if rank == 0 and failure is None:
        try:
            _seal_parts(folder, step, world_size, program)
        except CheckpointError as error:
            failure = error
    barrier()
    if failure is None and rank != 0 and part is not None:
        failure = _missing_in_seal(folder, part)
    if failure is None:
        return True
    if required:
        raise failure
    sys.stderr.write(f"slurm_robust.checkpoint: step {step} is not saved, training continues: {failure}\n")
    return False


def _group(
    rank: int | None, world_size: int | None, barrier: Callable[[], None] | None
) -> tuple[int, int, Callable[[], None]]:
    """Rank, world size and barrier, from torch.distributed where they are not given and it is up."""
    distributed = sys.modules.get("torch.distributed")
    up = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if rank is None:
        rank = int(distributed.get_rank()) if up and distributed is not None else 0
        if world_size is None and up and distributed is not None:
            world_size = int(distributed.get_world_size())
    world_size = 1 if world_size is None else world_size
    if world_size == 1:
        return rank, 1, lambda: None
    if barrier is None:
        if not up or distributed is None:
            raise CheckpointError(
                f"save() by {world_size} ranks needs a barrier",
                "Call torch.distributed.init_process_group first, or give barrier=",
            )
        barrier = distributed.barrier
    return rank, world_size, barrier


class _DigestingFile:
    """What torch.save writes to: the digest is that of the bytes meant to be written, before any disk has seen them."""

    def __init__(self, file: IO[bytes]) -> None:
        import xxhash  # noqa: PLC0415 (as torch)

        self.file = file
        self.hasher = xxhash.xxh3_128()

    def write(self, data: bytes | memoryview) -> int:
        self.hasher.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def _reached(point: str) -> None:
    """Named points of a save; tests replace it to kill the process there."""


def _part_path(folder: Path, rank: int) -> Path:
    return folder / f"part-{rank:05d}.json"


def _write_part(folder: Path, rank: int, state: Mapping[str, Any]) -> FileSeal:
    """Write, flush, rename, read back and compare this rank's file, and leave a note of it for rank 0.

    Raises:
        CheckpointError: any of that failed; nothing that could be taken for this rank's part is left.
    """
    import torch  # noqa: PLC0415 (as above)

    # Named after the rank: what a killed save left is written over by the next one, not kept for ever.
    temporary = folder / f".rank-{rank:05d}.pt.tmp"
    where = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.sync_folder(folder.parent)
        _part_path(folder, rank).unlink(missing_ok=True)  # of an earlier save of this step that was never sealed
        _reached("folder made")
        name = _free_name(folder, rank)
        where = folder / name
        with temporary.open("wb") as file:
            digesting = _DigestingFile(file)
            torch.save(dict(state), cast("IO[bytes]", digesting))  # all that it uses is write
            _reached("file written")
            file.flush()
            os.fsync(file.fileno())
        _reached("file flushed")
        temporary.replace(where)
        files.sync_folder(folder)
        _reached("file renamed")
        parts: list[str] = []
        meant, found = digesting.hasher.hexdigest(), files.digest(where, None, parts)
        if found != meant:
            raise CheckpointError(
                f"{where}: the bytes read back differ from those written: xxh3-128 {found}, expected {meant}",
                "Memory, disk controller or file system is faulty: srobust check",
            )
        part = seals.describe(folder, name, meant, tuple(parts))
        files.write_atomic(_part_path(folder, rank), msgspec.json.encode(part))
        _reached("part noted")
    except (OSError, RuntimeError) as error:  # torch turns a failed write into a RuntimeError
        with contextlib.suppress(OSError):
            temporary.unlink()
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        raise CheckpointError(f"{where}: cannot be written: {reason}", _SHOW) from error
    return part


def _free_name(folder: Path, rank: int) -> str:
    """A name that no seal speaks of yet, so that an earlier save of the same step stays whole meanwhile."""
    name, n = f"rank-{rank:05d}.pt", 0
    while (folder / name).exists():
        n += 1
        name = f"rank-{rank:05d}.{n}.pt"
    return name


def _read_part(folder: Path, rank: int) -> FileSeal:
    try:
        return msgspec.json.decode(_part_path(folder, rank).read_bytes(), type=FileSeal)
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: rank {rank} wrote no part", f"See the messages of rank {rank}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{_part_path(folder, rank)}: cannot be read: {error}", _SHOW) from error


def _seal_parts(folder: Path, step: int, world_size: int, program: str) -> None:
    """Rank 0: put the parts of all ranks under one seal, then remove what no seal speaks of.

    Raises:
        CheckpointError: a rank left no part, or the seal cannot be written.
    """
    parts = [_read_part(folder, rank) for rank in range(world_size)]
    try:
        _reached("about to seal")
        seals.write(folder, step, world_size, tuple(parts), program)
        _reached("sealed")
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be sealed: {error}", _SHOW) from error
    sealed = {part.name for part in parts}
    with contextlib.suppress(OSError):  # sealed it is; what is left over costs space only
        for path in folder.iterdir():
            if path.name not in sealed and re.fullmatch(
                r"rank-\d+(\.\d+)?\.pt|part-\d+\.json|\.rank-\d+\.pt\.tmp", path.name
            ):
                path.unlink()


def _missing_in_seal(folder: Path, part: FileSeal) -> CheckpointError | None:
    """What a rank other than 0 says where the seal does not stand, or stands without its file."""
    try:
        seal = seals.read(folder)
    except CheckpointError as error:
        return error
    if seal is not None and any(f.name == part.name and f.xxh3_128 == part.xxh3_128 for f in seal.files):
        return None
    return CheckpointError(f"{folder}: rank 0 did not seal it", "See the messages of the other ranks")
