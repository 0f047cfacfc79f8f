"""Lays out a rank's file: from torch.distributed.checkpoint's plan to positions in a buffer."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.shared import file_pieces

_LEAST_RESERVED_BYTES = 512


class FileItem(NamedTuple):
    """One item of the plan, and its position in the file.

    Attributes:
        name: DCP's name of the item.
        at: Where its piece begins; `length` is the size of the piece.
        data_at: Where its own bytes begin; `data_bytes` is their number (for a value: the number reserved).
        frame: The bytes around the item's own bytes.
        dtype: The type of a tensor; None for a value.
        shape: The shape of a tensor.
    """

    name: MetadataIndex
    at: int
    length: int
    data_at: int
    data_bytes: int
    frame: file_pieces.PieceFrame
    dtype: torch.dtype | None
    shape: tuple[int, ...]


class FileLayout(NamedTuple):
    """A rank's whole file."""

    places: tuple[FileItem, ...]
    file_bytes: int


class _TensorPickler(pickle.Pickler):
    """Pickles a tensor as torch.save does: its storage becomes a reference to record `0`."""

    def __init__(self, out: io.BytesIO, numel: int, item_bytes: int) -> None:
        super().__init__(out, protocol=2)
        self._numel, self._item_bytes = numel, item_bytes

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, torch.storage.TypedStorage):
            name = getattr(obj, "_pickle_storage_type")()  # noqa: B009 (torch gives it no type)
            return "storage", getattr(torch, name), "0", "cpu", self._numel
        if isinstance(obj, torch.UntypedStorage):
            return "storage", torch.UntypedStorage, "0", "cpu", self._numel * self._item_bytes
        return None


class _Rebuilt:
    """An object that is pickled as the call that makes a tensor."""

    def __init__(self, call: tuple[Any, ...]) -> None:
        self._call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def pickled_tensor(dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    """Return the pickle of a contiguous tensor on the CPU, without its bytes; nothing of that size is allocated."""
    small: Any = torch.empty(1, dtype=dtype)
    rebuild, (storage, offset, _, _, *rest) = small.__reduce_ex__(2)
    strides = [math.prod(max(1, size) for size in shape[dimension + 1 :]) for dimension in range(len(shape))]
    out = io.BytesIO()
    call = (rebuild, (storage, offset, tuple(shape), tuple(strides), *rest))
    _TensorPickler(out, math.prod(shape), dtype.itemsize).dump(_Rebuilt(call))
    return out.getvalue()


def pickled_value(value: object) -> bytes:
    """Return the pickle of a value that is not a tensor, and contains none.

    Raises CheckpointError if it cannot be pickled.
    """
    try:
        return pickle.dumps(value, protocol=2)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"the state holds a {type(value).__name__} that cannot be saved: {error}", "Leave it out of the state"
        ) from None


def arrange(items: Iterable[WriteItem], pickles: dict[str, bytes]) -> FileLayout:
    """Lay out the items of this rank's final plan, one after the other.

    `pickles` has the pickles of the items that are values, by name; space for twice their size is reserved.
    """
    frames: dict[tuple[torch.dtype, tuple[int, ...]], file_pieces.PieceFrame] = {}
    places: list[FileItem] = []
    at = 0
    for item in items:
        dtype: torch.dtype | None = None
        shape: tuple[int, ...] = ()
        if item.type == WriteItemType.BYTE_IO:
            data_bytes = max(_LEAST_RESERVED_BYTES, 2 * len(pickles[item.index.fqn]))
            frame = file_pieces.frame_object(data_bytes)
        else:
            assert item.tensor_data is not None
            dtype, shape = item.tensor_data.properties.dtype, tuple(item.tensor_data.chunk.sizes)
            data_bytes = math.prod(shape) * dtype.itemsize
            if (dtype, shape) not in frames:
                frames[dtype, shape] = file_pieces.frame_tensor(pickled_tensor(dtype, shape), data_bytes)
            frame = frames[dtype, shape]
        length = len(frame.before) + data_bytes + len(frame.after)
        places.append(FileItem(item.index, at, length, at + len(frame.before), data_bytes, frame, dtype, shape))
        at += -(-length // file_pieces.ALIGN_BYTES) * file_pieces.ALIGN_BYTES
    return FileLayout(tuple(places), at)


def stored(layout: FileLayout, file: str) -> dict[MetadataIndex, _StorageInfo]:
    """Return the position of each item, for DCP's metadata."""
    return {place.name: _StorageInfo(file, place.at, place.length) for place in layout.places}


def views(layout: FileLayout, slot: memoryview) -> list[torch.Tensor | memoryview]:
    """Return the target of each item: a tensor, or the bytes of a value. Also write the frames."""
    found: list[torch.Tensor | memoryview] = []
    for place in layout.places:
        slot[place.at : place.data_at] = place.frame.before
        end = place.data_at + place.data_bytes
        slot[end : end + len(place.frame.after)] = place.frame.after
        if place.dtype is None:
            found.append(slot[place.data_at : end])
        elif not place.data_bytes:
            found.append(torch.empty(place.shape, dtype=place.dtype))
        else:
            flat = torch.frombuffer(
                slot, dtype=place.dtype, count=place.data_bytes // place.dtype.itemsize, offset=place.data_at
            )
            found.append(flat.view(place.shape))
    return found


def pieces_of(layout: FileLayout, contents: Sequence[torch.Tensor | bytes]) -> Iterator[memoryview]:
    """Yield a rank's file, piece by piece, without a buffer; `contents` in the order of the layout's items."""
    at = 0
    for place, content in zip(layout.places, contents, strict=True):
        yield memoryview(bytes(place.at - at) + place.frame.before)
        if isinstance(content, bytes):
            yield memoryview(content.ljust(place.data_bytes, b"\0"))
        elif place.data_bytes:
            flat = content.cpu().contiguous().view(-1).view(torch.uint8)
            yield flat.numpy().data
        yield memoryview(place.frame.after)
        at = place.at + place.length
    yield memoryview(bytes(layout.file_bytes - at))
