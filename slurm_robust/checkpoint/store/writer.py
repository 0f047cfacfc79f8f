"""Writes a checkpoint so that after a kill at any instant the previous one is still chosen."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.checkpoint_files import CHECK_DISK, part_path
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.replay import in_replay
from slurm_robust.checkpoint.store import seals
from slurm_robust.checkpoint.store.seals import FileSeal
from slurm_robust.wire import own_folder


def folder_name(step: int) -> str:
    """Return the folder of a step's checkpoint."""
    return f"step-{step:08d}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveGroup:
    """The ranks that save together, for programs without torch.distributed, or with groups of their own.

    Attributes:
        rank: This rank; torch.distributed's if it is initialized, else 0.
        world_size: Ranks that call `save`; as `rank`, else 1.
        barrier: Called twice by each rank if there are several; torch.distributed's if it is initialized.
    """

    rank: int | None = None
    world_size: int | None = None
    barrier: Callable[[], None] | None = None


def save(
    directory: str | Path,
    step: int,
    state: Mapping[str, Any],
    *,
    group: SaveGroup | None = None,
    required: bool = True,
    program: str = "",
    **deprecated: Any,
) -> bool:
    """Write this rank's `state`, verify it, and (rank 0, once every rank has) seal the checkpoint of `step`.

    All ranks call it. Each writes one file, flushes it, reads it back and compares digests; rank 0 writes the seal
    last. Until then the checkpoint is never chosen. Files of an earlier save of the same step stay until the new seal
    is written.

    Args:
        directory: The folder of checkpoints; created if it does not exist.
        step: The last step that `state` includes.
        state: An argument for torch.save.
        group: The ranks that save together, if not those of torch.distributed.
        required: False: a save that fails is reported on stderr and training continues.
        program: The program that wrote it, for the seal; slurm-robust and its version if empty.
        deprecated: `rank`, `world_size` and `barrier`, now in `SaveGroup`; accepted for one version.

    Returns:
        True: the checkpoint is sealed. False, only if not `required`, or in a replay (`SROBUST_REPLAY=1`): it is not.

    Raises:
        CheckpointError: the save failed, if `required`; the same error on every rank.
    """
    if deprecated:
        names = ", ".join(f"{name}=..." for name in deprecated)
        message = f"checkpoint.save({names}) is deprecated: use group=SaveGroup({names})"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        group = dataclasses.replace(group or SaveGroup(), **deprecated)
    if in_replay():
        return False
    rank, world_size, barrier = _resolved(group or SaveGroup())
    folder = Path(directory) / folder_name(step)
    failure: CheckpointError | None = None
    part: FileSeal | None = None
    try:
        part = _write_part(folder, rank, state)
    except CheckpointError as error:
        failure = error
    # A rank that failed still enters the barrier: the others must not wait for it for ever.
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


def _resolved(group: SaveGroup) -> tuple[int, int, Callable[[], None]]:
    """Rank, world size and barrier; from torch.distributed if they are not given and it is initialized."""
    rank, world_size, barrier = group.rank, group.world_size, group.barrier
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
                "Call torch.distributed.init_process_group first, or give group=SaveGroup(barrier=...)",
            )
        barrier = distributed.barrier
    return rank, world_size, barrier


class _DigestingFile:
    """A file for torch.save that digests the bytes before they are written to any disk."""

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


def _write_part(folder: Path, rank: int, state: Mapping[str, Any]) -> FileSeal:
    """Write, flush, rename, read back and compare this rank's file, and then leave a note of it for rank 0."""
    import torch  # noqa: PLC0415 (as above)

    # Named after the rank: the next save overwrites what a killed one left.
    temporary = folder / f".rank-{rank:05d}.pt.tmp"
    where = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.sync_folder(folder.parent)
        part_path(folder, rank).unlink(missing_ok=True)  # of an earlier save of this step that was never sealed
        _reached("folder made")
        name = _free_name(folder, rank)
        where = folder / name
        with open(temporary, "wb", opener=own_folder.fresh) as file:
            digesting = _DigestingFile(file)
            torch.save(dict(state), cast("IO[bytes]", digesting))  # all that it uses is write
            _reached("file written")
            file.flush()
            os.fsync(file.fileno())
        _reached("file flushed")
        temporary.replace(where)
        files.sync_folder(folder)
        _reached("file renamed")
        part = seals.read_back(folder, name, digesting.hasher.hexdigest())
        files.write_atomic(part_path(folder, rank), msgspec.json.encode(part))
        _reached("part noted")
    except (OSError, RuntimeError) as error:  # torch turns a failed write into a RuntimeError
        with contextlib.suppress(OSError):
            temporary.unlink()
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        raise CheckpointError(f"{where}: cannot be written: {reason}", CHECK_DISK) from error
    return part


def _free_name(folder: Path, rank: int) -> str:
    """Return an unused name, so that an earlier save of the same step stays intact meanwhile."""
    name, n = f"rank-{rank:05d}.pt", 0
    while (folder / name).exists():
        n += 1
        name = f"rank-{rank:05d}.{n}.pt"
    return name


def _read_part(folder: Path, rank: int) -> FileSeal:
    try:
        return msgspec.json.decode(part_path(folder, rank).read_bytes(), type=FileSeal)
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: rank {rank} wrote no part", f"See the messages of rank {rank}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{part_path(folder, rank)}: cannot be read: {error}", CHECK_DISK) from error


def _seal_parts(folder: Path, step: int, world_size: int, program: str) -> None:
    """Rank 0: seal the parts of all ranks, then remove files that are not in the seal."""
    parts = [_read_part(folder, rank) for rank in range(world_size)]
    try:
        _reached("about to seal")
        seals.write(folder, step, world_size, tuple(parts), seals.SealOrigin(program))
        _reached("sealed")
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be sealed: {error}", CHECK_DISK) from error
    sealed = {part.name for part in parts}
    with contextlib.suppress(OSError):  # it is sealed; remaining files only cost space
        for path in folder.iterdir():
            if path.name not in sealed and re.fullmatch(
                r"rank-\d+(\.\d+)?\.pt|part-\d+\.json|\.rank-\d+\.pt\.tmp", path.name
            ):
                path.unlink()


def _missing_in_seal(folder: Path, part: FileSeal) -> CheckpointError | None:
    """Return the error, on ranks other than 0, if there is no seal, or a seal without this rank's file."""
    try:
        seal = seals.read(folder)
    except CheckpointError as error:
        return error
    if seal is not None and any(f.name == part.name and f.xxh3_128 == part.xxh3_128 for f in seal.files):
        return None
    return CheckpointError(f"{folder}: rank 0 did not seal it", "See the messages of the other ranks")
