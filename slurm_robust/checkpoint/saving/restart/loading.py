"""Loads a checkpoint into a model of any layout, from files or from the memory that a killed run left."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from slurm_robust.checkpoint.saving.rank.save_plan import RankGroup
from slurm_robust.checkpoint.saving.shared import file_pieces


class FilePiece(NamedTuple):
    """A range of bytes of a checkpoint's file."""

    file: str
    at: int
    length: int


class SafeLoadPlanner(DefaultLoadPlanner):
    """DCP's planner, but values are read without executing pickles."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load a value with weights_only, and pickle it again for DCP, which would execute any pickle."""
        content = torch.load(value, map_location="cpu", weights_only=True)
        admitted = io.BytesIO()
        torch.save(content, admitted)
        admitted.seek(0)
        super().load_bytes(read_item, admitted)


class FileSource:
    """The bytes of a checkpoint in a folder; `metadata` is DCP's `.metadata`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = (folder / ".metadata").read_bytes()

    def read(self, wanted: Mapping[FilePiece, list[ReadItem]], sink: TensorSink) -> None:
        """Pass every wanted piece to the sink, one by one. Raises OSError if one cannot be read.

        A mapping would turn a bad sector into SIGBUS.
        """
        for piece, items in wanted.items():
            view = memoryview(bytearray(piece.length))
            got = 0
            with (self.folder / piece.file).open("rb", buffering=0) as opened:
                opened.seek(piece.at)
                while got < piece.length and (more := opened.readinto(view[got:])):
                    got += more
            if got < piece.length:
                raise OSError(f"{self.folder / piece.file}: ends {piece.length - got} bytes early")
            sink.give(view, items)


class MemorySource:
    """Copies in memory, here or on other nodes; files that are not on this node are sent by their owner.

    Args:
        metadata: DCP's `.metadata`.
        here: File → its bytes, for files on this node.
        owners: File → the rank that sends it, for all files.
        ranks: All ranks that load; they read at the same time.
    """

    def __init__(
        self, metadata: bytes, here: Mapping[str, memoryview], owners: Mapping[str, int], ranks: RankGroup
    ) -> None:
        self.metadata, self.here, self.owners, self.ranks = metadata, here, owners, ranks

    def read(self, wanted: Mapping[FilePiece, list[ReadItem]], sink: TensorSink) -> None:
        """Pass every wanted piece to the sink: those on this node, then the others one by one, to bound the memory."""
        away = {piece for piece in wanted if piece.file not in self.here}
        failure: Exception | None = None
        try:
            for piece, items in wanted.items():
                if piece not in away:
                    sink.give(self._bytes(piece), items)
        except (RuntimeError, ValueError) as error:
            failure = error  # raised once the other ranks have received their pieces
        wanted_by: dict[FilePiece, list[int]] = {}
        for rank, missed in enumerate(self.ranks.gather(away)):
            for piece in missed:
                wanted_by.setdefault(piece, []).append(rank)
        # All ranks use the same order, so that they cannot deadlock.
        for piece in sorted(wanted_by):
            sent = self._exchanged(piece, wanted_by[piece])
            if sent is not None and piece in away and failure is None:
                try:
                    sink.give(sent.numpy().data, wanted[piece])
                except (RuntimeError, ValueError) as error:
                    failure = error
        if failure is not None:
            raise failure

    def _exchanged(self, piece: FilePiece, wanted_by: list[int]) -> torch.Tensor | None:
        """Return a piece that its owner sends, on the ranks that want it."""
        owner, mine = self.owners[piece.file], self.ranks.rank
        everybody = 2 * len(wanted_by) > self.ranks.world_size
        if not everybody and mine != owner and mine not in wanted_by:
            return None
        if mine == owner:
            sent = torch.frombuffer(self._bytes(piece), dtype=torch.uint8)
        else:
            sent = torch.empty(piece.length, dtype=torch.uint8)
        if everybody:
            dist.broadcast(sent, src=owner, group=self.ranks.group)
        elif mine == owner:
            for rank in wanted_by:
                dist.send(sent, dst=rank, group=self.ranks.group)
        else:
            dist.recv(sent, src=owner, group=self.ranks.group)
        return sent

    def _bytes(self, piece: FilePiece) -> memoryview:
        return self.here[piece.file][piece.at : piece.at + piece.length]


CheckpointSource = FileSource | MemorySource


class TensorSink:
    """Copies pieces into the tensors and values of the state."""

    def __init__(self, planner: SafeLoadPlanner, metadata: Metadata) -> None:
        self.planner = planner
        self._kinds: dict[MetadataIndex, tuple[torch.dtype, tuple[int, ...]]] = {}
        for name, stored_as in metadata.state_dict_metadata.items():
            if isinstance(stored_as, TensorStorageMetadata):
                for chunk in stored_as.chunks:
                    kind = (stored_as.properties.dtype, tuple(chunk.sizes))
                    self._kinds[MetadataIndex(name, chunk.offsets)] = kind

    def give(self, piece: memoryview, items: list[ReadItem]) -> None:
        """Copy a piece, or parts of it, directly into the tensors in use. ValueError if its shape is not as planned."""
        whole: torch.Tensor | None = None
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                self.planner.load_bytes(item, io.BytesIO(piece))
                continue
            if whole is None:
                whole = _tensor(piece, *self._kinds[item.storage_index])
            part = whole
            for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                part = part.narrow(dimension, offset, length)
            target = self.planner.resolve_tensor(item).detach()
            if part.shape != target.shape:
                raise ValueError(f"{item.storage_index.fqn}: {tuple(part.shape)} stored, {tuple(target.shape)} wanted")
            target.copy_(part)
            self.planner.commit_tensor(item, target)


def _tensor(piece: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor of a piece: a view if this package wrote it, else loaded by torch."""
    size_bytes = math.prod(shape) * dtype.itemsize
    try:
        at, length = file_pieces.find(piece, file_pieces.TENSOR)
    except ValueError:
        tensor: torch.Tensor = torch.load(io.BytesIO(piece), map_location="cpu", weights_only=True)
        return tensor
    if length != size_bytes:
        raise ValueError(f"a piece of {length} bytes for a {dtype} of {shape}")
    if not length:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(piece, dtype=dtype, count=length // dtype.itemsize, offset=at).view(shape)


def names(metadata: bytes) -> set[str]:
    """Return the names in a checkpoint: `model.layer.weight`, `rng.rank3`."""
    return set(_understood(metadata).state_dict_metadata)


def _understood(metadata: bytes) -> Metadata:
    understood: Metadata = pickle.loads(metadata)  # noqa: S301 (its digest was compared with the seal's; DCP does so, too)
    return understood


class StateLoad:
    """A load in two steps: `plan` on each rank, then `read` on all ranks together.

    The tensors of the current state, `collected`, are overwritten in place.
    """

    def __init__(self, collected: dict[str, Any], source: CheckpointSource) -> None:
        self.collected, self.source = collected, source
        self._wanted: dict[FilePiece, list[ReadItem]] = {}
        self._sink: TensorSink | None = None

    def plan(self) -> None:
        """Determine the pieces that this rank needs; RuntimeError or ValueError if state and checkpoint do not fit."""
        metadata, planner = _understood(self.source.metadata), SafeLoadPlanner()
        planner.set_up_planner(self.collected, metadata, True)
        plan = planner.finish_plan(planner.create_global_plan([planner.create_local_plan()])[0])
        stored = metadata.storage_data or {}
        for item in plan.items:
            where = stored[item.storage_index]
            self._wanted.setdefault(FilePiece(where.relative_path, where.offset, where.length), []).append(item)
        self._sink = TensorSink(planner, metadata)

    def read(self) -> None:
        """Read the pieces. After an OSError, RuntimeError or ValueError tensors may be partly overwritten."""
        assert self._sink is not None
        with torch.no_grad():
            self.source.read(dict(sorted(self._wanted.items())), self._sink)
