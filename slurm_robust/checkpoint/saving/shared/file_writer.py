"""Writes a rank's file and reads it back, and seals a checkpoint once all ranks' files exist. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import xxhash

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.checkpoint_files import CHECK_DISK, SEAL_NAME, part_path
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.pruning import prune
from slurm_robust.checkpoint.saving.shared.image import ImageDescription, Note
from slurm_robust.checkpoint.store import seals
from slurm_robust.checkpoint.store.seals import FileSeal
from slurm_robust.wire import own_folder

METADATA = ".metadata"
LAYOUT = "torch.distributed.checkpoint"
_CHUNK_BYTES = 4 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
ANOTHER_S = 3.0
"""The time without growth after which a file counts as not being written by another process."""
WRITERS = ("", ".backup1", ".backup2")
"""The nodes that may write a rank's file: its own, and its backups; suffixes of incomplete files."""


class RankPart(msgspec.Struct, frozen=True, kw_only=True):
    """`part-NNNNN.json`: confirms that one rank's share of a save is on the disk.

    Attributes:
        save_id: The id of the save.
        rank: The rank of the share.
        files: The files of the share; empty if the rank had nothing to write.
        plan: The digest of all ranks' plans.
        world_size: Ranks that saved together.
        note: The note of the save, with which a restart can use this part though the save was never sealed.
    """

    save_id: str
    rank: int
    files: tuple[FileSeal, ...]
    plan: str = ""
    world_size: int = 0
    note: Note | None = None


def part_of(description: ImageDescription, note: Note, found: tuple[FileSeal, ...]) -> RankPart:
    """Return the part of an image's rank."""
    return RankPart(
        save_id=note.save_id,
        rank=description.rank,
        files=found,
        plan=description.digest,
        world_size=description.world_size,
        note=note,
    )


class MissingParts(Exception):  # noqa: N818 (not an error: other ranks are still writing)
    """Parts that do not exist yet; `args[0]` are their ranks."""


def reached(point: str) -> None:
    """Named points of a save; tests replace it to kill the process there."""


def folder_name(step: int, run: str, again: int) -> str:
    """Return the folder of a save; unique for each run and save, so that nothing is ever overwritten."""
    return f"step-{step:08d}-{run}{'x' * again}"


def write_file(folder: Path, name: str, content: Iterable[memoryview], writer: str = WRITERS[0]) -> FileSeal:
    """Write a file, flush it, read it back and compare.

    Raises:
        CheckpointError: any of that failed; no file of that name is left.
    """
    where, temporary = folder / name, folder / f".{name}{writer}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.sync_folder(folder.parent)
        reached("folder made")
        hasher = xxhash.xxh3_128()
        with open(temporary, "wb", buffering=0, opener=own_folder.fresh) as file:
            for piece in content:
                for at in range(0, len(piece), _CHUNK_BYTES):
                    chunk = piece[at : at + _CHUNK_BYTES]
                    hasher.update(chunk)
                    _write_all(file.fileno(), chunk)
            reached("file written")
            os.fsync(file.fileno())
        temporary.replace(where)
        files.sync_folder(folder)
        reached("file renamed")
        try:
            return seals.read_back(folder, name, hasher.hexdigest())
        except CheckpointError:
            where.unlink(missing_ok=True)
            raise
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CheckpointError(f"{where}: cannot be written: {error}", CHECK_DISK) from error


def _write_all(fd: int, chunk: memoryview) -> None:
    while len(chunk):
        chunk = chunk[os.write(fd, chunk) :]


def note_part(folder: Path, part: RankPart) -> None:
    """Write the part, for the rank that seals. Raises CheckpointError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_atomic(part_path(folder, part.rank), msgspec.json.encode(part))
    except OSError as error:
        raise CheckpointError(f"{part_path(folder, part.rank)}: cannot be written: {error}", CHECK_DISK) from error
    reached("part noted")


def written_by_another(
    folder: Path, description: ImageDescription, save_id: str, patience_s: float = ANOTHER_S
) -> bool:
    """Return whether a rank's share is written by another node that has it; waits while that node is writing."""
    temporaries = [folder / f".{description.file}{writer}.tmp" for writer in WRITERS]
    before, since_s = [-1], time.monotonic()
    while time.monotonic() - since_s < patience_s:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            if seals.read(folder) is not None:
                return True
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            part = msgspec.json.decode(part_path(folder, description.rank).read_bytes(), type=RankPart)
            if part.save_id == save_id:
                return True
        now = [_size_bytes(temporary) for temporary in temporaries]
        if now != before:
            before, since_s = now, time.monotonic()
        time.sleep(_FIRST_PAUSE_S)
    return False


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def seal_parts(folder: Path, note: Note, world_size: int) -> None:
    """Seal all ranks' files, unless another process has.

    Raises:
        MissingParts: not all parts exist yet.
        CheckpointError: the seal cannot be written.
    """
    found: list[FileSeal] = []
    missing: list[int] = []
    try:
        there = set(os.listdir(folder))  # noqa: PTH208 (on a network file system a listing is never stale, an open may be)
        if SEAL_NAME in there:
            return  # by another node that has rank 0's share
        for rank in range(world_size):
            path = part_path(folder, rank)
            part = msgspec.json.decode(path.read_bytes(), type=RankPart) if path.name in there else None
            if part is None or part.save_id != note.save_id:
                missing.append(rank)
            else:
                found += part.files
        if missing:
            raise MissingParts(missing)
        reached("about to seal")
        origin = seals.SealOrigin(layout=LAYOUT, saved_at_s=note.saved_at_s)
        seals.write(folder, note.step, world_size, tuple(found), origin)
        reached("sealed")
    except (OSError, msgspec.MsgspecError) as error:
        if (folder / SEAL_NAME).exists():
            return  # another process was faster, and has removed the parts
        raise CheckpointError(f"{folder}: cannot be sealed: {error}", CHECK_DISK) from error
    with contextlib.suppress(OSError):  # it is sealed
        for rank in range(world_size):
            part_path(folder, rank).unlink(missing_ok=True)
    reached("cleaned up")


def half_written(folder: Path) -> frozenset[tuple[str, int, int]]:
    """Name, size and time of change of incomplete files: changes as long as a process is writing."""
    found: set[tuple[str, int, int]] = set()
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for entry in listing:
            if entry.name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    found.add((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns))
    return frozenset(found)


def retain(directory: Path, keep: int) -> str:
    """Remove sealed checkpoints beyond the newest `keep` (0: remove nothing) and unfinished old saves; why that failed.

    The newest checkpoint stays sealed either way.
    """
    try:
        if keep:
            prune(directory, keep, deep=False)
            reached("pruned")
    except CheckpointError as error:
        return f"old checkpoints are not removed: {error}"
    return ""


def seal_when_complete(folder: Path, note: Note, world_size: int, give_up: Callable[[], bool]) -> None:
    """Wait for all ranks' parts, then seal; `give_up` is called between two polls.

    Raises:
        CheckpointError: parts are missing, or the seal cannot be written.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return seal_parts(folder, note, world_size)
        except MissingParts as missing:
            ranks = missing.args[0]
        if give_up():
            few = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
            raise CheckpointError(
                f"{folder}: not sealed: no part of rank {few} was written",
                "See the messages of those ranks; all nodes must see this folder: is it on a shared file system?",
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
