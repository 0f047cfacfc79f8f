"""Writes ranks' shares as files without a seal: on a node's own disk, or on the shared file system."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from slurm_robust.checkpoint.base.checkpoint_files import SEAL_NAME
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.shared import file_writer
from slurm_robust.checkpoint.saving.shared.image import Image, ImageDescription, Note

_IN_FLIGHT = 2
"""Ranks are at most so many saves apart: all ranks keep the newest save of the slowest one."""


def root(local: Path, directory: Path) -> Path:
    """Return the folder on this node's disk for checkpoints that belong to `directory`.

    Contains the node's name, in case the disk is shared by several nodes after all.
    """
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return local.absolute() / f"{directory.name}-{xxhash.xxh3_64_hexdigest(str(directory).encode())}" / node


class WrittenPart(NamedTuple):
    """A part, and its folder."""

    folder: Path
    part: file_writer.RankPart
    has_metadata: bool


def written(directory: Path) -> Iterator[WrittenPart]:
    """Yield all parts in a folder of checkpoints that name their save, and are not sealed."""
    with contextlib.suppress(OSError):
        for folder in sorted(directory.glob("step-*")):
            if (folder / SEAL_NAME).exists():
                continue
            for path in sorted(folder.glob("part-*.json")):
                with contextlib.suppress(OSError, msgspec.MsgspecError):
                    part = msgspec.json.decode(path.read_bytes(), type=file_writer.RankPart)
                    if part.note is not None:
                        yield WrittenPart(folder, part, (folder / file_writer.METADATA).is_file())


def write(description: ImageDescription, image: Image, slot: int, note: Note) -> bytes:
    """Write a rank's share to the node's own disk, and remove old shares; the digest of its file.

    Raises:
        CheckpointError: it cannot be written.
    """
    where = Path(description.local)
    folder, found = where / note.folder, []
    if description.file_bytes:
        content = image.slot(slot)[: description.file_bytes]
        found.append(file_writer.write_file(folder, description.file, [content]))
    if description.metadata_bytes:
        found.append(file_writer.write_file(folder, file_writer.METADATA, [image.metadata]))
    file_writer.note_part(folder, file_writer.part_of(description, note, tuple(found)))
    _retain(where, description.rank, description.keep_local)
    return bytes.fromhex(found[0].xxh3_128) if description.file_bytes else b""


def _retain(where: Path, rank: int, keep: int) -> None:
    """Remove folders older than the newest that this rank needs; 0 keeps all. CheckpointError if one cannot be."""
    if not keep:
        return
    mine = sorted(
        (one.part.note.saved_at_s for one in written(where) if one.part.rank == rank and one.part.note is not None),
        reverse=True,
    )
    if len(mine) <= keep + _IN_FLIGHT:
        return
    oldest_s = mine[keep + _IN_FLIGHT - 1]
    for one in list(written(where)):
        if one.part.note is not None and one.part.note.saved_at_s < oldest_s:
            try:
                shutil.rmtree(one.folder)
            except FileNotFoundError:
                continue  # another rank of this node was first
            except OSError as error:
                raise CheckpointError(f"{one.folder}: cannot be removed: {error}", "Remove it by hand") from error
