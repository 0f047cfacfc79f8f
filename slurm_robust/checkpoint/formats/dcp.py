"""Recognises `torch.distributed.checkpoint`: `.metadata` names each tensor's chunks with file, offset and length."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.checkpoint_files import unsafe
from slurm_robust.checkpoint.formats import inert, safetensors, torchfile
from slurm_robust.checkpoint.formats.tree import FileProblem, FormatReport, Tree

NAME = "torch.distributed.checkpoint"
METADATA = ".metadata"
_MOST_TOLD = 100
_Shape = tuple[int, ...] | None
_Place = tuple[str, tuple[int, ...]]
_Piece = tuple[int, int, str, _Shape]
"""Offset, length and name of a piece, and its tensor's shape if that is known."""


def recognise(tree: Tree) -> FormatReport | None:
    """Recognise a folder with `.metadata`, or with shards that lack it."""
    shards = [name for name in tree.files if name.endswith(".distcp")]
    if METADATA not in tree.files:
        if not shards:
            return None
        missing = "missing: it is written last, the save did not finish"
        return FormatReport(format=NAME, problems=[(METADATA, missing)])
    try:
        metadata = inert.load(tree.read(METADATA))
        report = _compared(tree, metadata)
    except ValueError as error:
        return FormatReport(format=NAME, problems=[(METADATA, f"{error} (truncated?)")])
    except inert.MALFORMED as error:
        return FormatReport(format=NAME, problems=[(METADATA, f"not understood: {type(error).__name__}: {error}")])
    ranks = {int(part) for name in shards if (part := name.strip("_").partition("_")[0]).isdecimal()}
    report.world_size = max(ranks, default=-1) + 1
    report.of_torch = [name for name in tree.files if name.endswith(".pt")]  # Lightning's meta.pt
    return report


def _compared(tree: Tree, metadata: Any) -> FormatReport:
    """Hold metadata against files. Raises ValueError if it is no metadata."""
    tensors = inert.field(metadata, "state_dict_metadata")
    places = inert.field(metadata, "storage_data")
    if not isinstance(tensors, dict) or not isinstance(places, dict):
        raise ValueError("names no tensors")  # noqa: TRY004 (the file is wrong, not the caller)
    report = FormatReport(format=NAME)
    chunks: dict[_Place, _Shape] = {}
    # Megatron's own layouts store some tensors in shapes that are not their global one.
    whole = "common.pt" not in tree.files
    for fqn, tensor in tensors.items():
        report.problems += [(METADATA, what) for what in _chunks(str(fqn), tensor, chunks, whole=whole)]
    by_file: dict[str, list[_Piece]] = {}
    for index, info in places.items():
        place = (str(inert.field(index, "fqn")), _numbers(inert.field(index, "offset")) or ())
        name = inert.field(info, "relative_path")
        start, length = inert.number(info, "offset"), inert.number(info, "length")
        if not isinstance(name, str) or unsafe(name) or start is None or length is None or min(start, length) < 0:
            report.problems.append((METADATA, f"{place[0]}: in no file that could be ({name!r}, {start}, {length})"))
            continue
        shape = chunks.pop(place, None)
        plain = inert.field(info, "transform_descriptors") is None
        by_file.setdefault(name, []).append((start, length, place[0], shape if plain else None))
    for fqn, offsets in list(chunks)[:_MOST_TOLD]:
        report.problems.append((METADATA, f"{fqn}: no file holds its chunk at {offsets}"))
    for name, pieces in sorted(by_file.items()):
        report.problems += _in_file(tree, name, pieces)
    return report


def _chunks(fqn: str, tensor: Any, found: dict[_Place, _Shape], *, whole: bool) -> list[str]:
    """Put a tensor's chunks into `found`, and return the problems with the chunks."""
    if not inert.is_a(tensor, "TensorStorageMetadata"):
        found[fqn, ()] = None
        return []
    size, chunks = _numbers(inert.field(tensor, "size")), inert.field(tensor, "chunks")
    if size is None or not isinstance(chunks, list):
        return [f"{fqn}: no shape"]
    wrong, elements = [], 0
    for chunk in chunks:
        offsets, sizes = _numbers(inert.field(chunk, "offsets")), _numbers(inert.field(chunk, "sizes"))
        if offsets is None or sizes is None or not len(offsets) == len(sizes) == len(size):
            return [f"{fqn}: a chunk without a place"]
        if whole and any(at + n > most for at, n, most in zip(offsets, sizes, size, strict=True)):
            wrong.append(f"{fqn}: the chunk at {offsets} reaches beyond {size}")
        found[fqn, offsets] = sizes
        elements += math.prod(sizes)
    if whole and elements < math.prod(size):
        wrong.append(f"{fqn}: its chunks have {elements} of {math.prod(size)} elements")
    return wrong


def _in_file(tree: Tree, name: str, pieces: list[_Piece]) -> list[FileProblem]:
    """Return pieces that reach beyond their file, or do not lie there."""
    if name not in tree.names:
        return [(name, f"missing: {len(pieces)} pieces lie in it, {pieces[0][2]} among them")]
    size_bytes = tree.size_bytes(name)
    end, _, fqn = max((start + length, start, fqn) for start, length, fqn, _ in pieces)
    if end > size_bytes:
        return [(name, f"{size_bytes} bytes, {METADATA} tells {end} (truncated): {fqn} is cut off")]
    wrong = []
    with files.named(tree.folder / name), (tree.folder / name).open("rb") as file:
        for start, length, fqn, sizes in sorted(pieces, key=lambda piece: piece[0]):
            if what := _piece(file, start, length, sizes):
                wrong.append((name, f"{fqn}, {length} bytes at {start}: {what}"))
    return wrong


def _piece(file: IO[bytes], start: int, length: int, sizes: _Shape) -> str:
    """Return what is wrong with a piece: a tensor is a file of torch.save or safetensors, other pieces vary."""
    content = torchfile.read(io.BufferedReader(_Region(file, start, length)), whole=True)
    if content is None:
        # Written as safetensors, all tensors lie behind one header, and each is told to begin at that.
        left_bytes = os.fstat(file.fileno()).st_size - start
        known = sizes is None or safetensors.looks_like(os.pread(file.fileno(), 9, start), left_bytes)
        return "" if known else "no tensor lies there: overwritten?"
    if content.problems:
        return content.problems[0]
    shape = torchfile.shape(content.value)
    return f"a tensor of {shape}, meant {sizes}" if sizes is not None and shape is not None and shape != sizes else ""


Shards = dict[str, list[tuple[int, int, str]]]
"""Offset, length and name of every piece of each shard."""


def pieces(shard: Path, file: IO[bytes], read: dict[Path, Shards]) -> Iterator[tuple[int, int, str, IO[bytes]]]:
    """Yield (offset, length, name, the bytes) of every piece of the open shard `file`, by the metadata beside it.

    `read` takes the metadata, by folder: thousands of shards have one. Raises OSError if it cannot be read.
    """
    if shard.parent not in read:
        read[shard.parent] = _shards(shard.parent / METADATA)
    for start, length, name in read[shard.parent].get(shard.name, []):
        yield start, length, name, io.BufferedReader(_Region(file, start, length))


def _shards(metadata: Path) -> Shards:
    found: Shards = {}
    try:
        with files.named(metadata):
            places = inert.field(inert.load(metadata.read_bytes()), "storage_data")
    except (FileNotFoundError, ValueError):
        return found
    for index, info in places.items() if isinstance(places, dict) else ():
        start, length = inert.number(info, "offset"), inert.number(info, "length")
        if start is not None and length is not None:
            piece = start, length, str(inert.field(index, "fqn"))
            found.setdefault(str(inert.field(info, "relative_path")), []).append(piece)
    return found


def _numbers(value: Any) -> tuple[int, ...] | None:
    """Return the numbers of a `torch.Size` or a tuple; None for anything else."""
    if inert.is_a(value, "Size"):
        value = value.args[0] if value.args else ()
    if isinstance(value, (tuple, list)) and all(isinstance(n, int) and n >= 0 for n in value):
        return tuple(value)
    return None


class _Region(io.RawIOBase):
    """A part of an open file, a piece of a `.distcp`, as a file of its own."""

    def __init__(self, file: IO[bytes], start: int, size_bytes: int) -> None:
        super().__init__()
        self._fd, self._start, self._size, self._at = file.fileno(), start, size_bytes, 0

    def readable(self) -> bool:
        """Return True: the bytes can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the position can be set."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position within these bytes, as a file does, and return it."""
        at = offset + (0 if whence == os.SEEK_SET else self._at if whence == os.SEEK_CUR else self._size)
        if at < 0:
            raise ValueError(f"offset {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        """Read as a file does."""
        view = memoryview(buffer)[: max(0, self._size - self._at)]
        got = os.preadv(self._fd, [view], self._start + self._at) if len(view) else 0
        self._at += got
        return got
