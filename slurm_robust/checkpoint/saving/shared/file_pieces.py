"""Computes the bytes around one tensor or value in a `torch.save` file, before the tensor's own bytes are known.

Each piece of a checkpoint file is a zip of its own, as torch.distributed.checkpoint writes it. Everything in that zip
except the tensor's bytes follows from dtype and shape; so a buffer is prepared once, and a save only copies bytes into
it. CRCs are omitted, as `torch.serialization.set_crc32_options(False)` does: the seal has a digest of every byte.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

ALIGN_BYTES = 64
"""A tensor's bytes begin at a multiple of this, as in torch's own files."""
TENSOR = "archive/data/0"
OBJECT = "archive/data.pkl"
_MARKS = {"archive/byteorder": b"little", "archive/version": b"3\n"}
_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
_MOST_32 = 0xFFFFFFFF
_PADDING_ID = 0x4246  # "FB", what torch pads with


class PieceFrame(NamedTuple):
    """The bytes before and after a piece's own; `len(before)` is a multiple of `ALIGN_BYTES`."""

    before: bytes
    after: bytes


def frame_tensor(pickled: bytes, data_bytes: int, *, zip64: bool = False) -> PieceFrame:
    """Return the frame of a tensor whose storage, `0` in the pickle that torch makes, has so many bytes.

    `zip64` uses 64-bit fields even if the size does not need them.
    """
    return _frame({OBJECT: pickled, **_MARKS}, TENSOR, data_bytes, zip64=zip64)


def frame_object(reserved_bytes: int) -> PieceFrame:
    """Return the frame of a value: its pickle is written to the start of the reserved bytes, and marks its own end."""
    return _frame(_MARKS, OBJECT, reserved_bytes, zip64=False)


def _frame(others: Mapping[str, bytes], name: str, data_bytes: int, *, zip64: bool) -> PieceFrame:
    wide = zip64 or data_bytes >= _MOST_32
    before, directory = b"", b""
    for other, content in others.items():
        directory += _entry(other, len(content), len(before), wide=False)
        before += _local(other, len(content), b"") + content
    extra = struct.pack("<2H2Q", 1, 16, data_bytes, data_bytes) if wide else b""
    start = len(before)
    bare = start + _LOCAL.size + len(name) + len(extra) + 4
    padding = -bare % ALIGN_BYTES
    extra += struct.pack("<2H", _PADDING_ID, padding) + b"Z" * padding
    before += _local(name, _MOST_32 if wide else data_bytes, extra)
    directory += _entry(name, data_bytes, start, wide=wide)
    count, at = len(others) + 1, len(before) + data_bytes
    after = directory
    if wide:
        after += _END_64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), at)
        after += _LOCATOR_64.pack(b"PK\x06\x07", 0, at + len(directory), 1)
        at = _MOST_32
    return PieceFrame(before, after + _END.pack(b"PK\x05\x06", 0, 0, count, count, len(directory), at, 0))


def _local(name: str, size: int, extra: bytes) -> bytes:
    head = _LOCAL.pack(b"PK\x03\x04", 45, 0, 0, 0, 0, 0, size, size, len(name), len(extra))
    return head + name.encode() + extra


def _entry(name: str, size: int, at: int, *, wide: bool) -> bytes:
    extra = struct.pack("<2H2Q", 1, 16, size, size) if wide else b""
    size_32 = _MOST_32 if wide else size
    fixed = (b"PK\x01\x02", 45, 45, 0, 0, 0, 0, 0, size_32, size_32, len(name), len(extra), 0, 0, 0, 0, at)
    return _ENTRY.pack(*fixed) + name.encode() + extra


def find(piece: memoryview, name: str) -> tuple[int, int]:
    """Offset and length of record `name` (`TENSOR`, `OBJECT`) in a piece that `frame_…` framed.

    Raises:
        ValueError: it is no such piece, or has no such record.
    """
    at = 0
    while at + _LOCAL.size <= len(piece):
        fields = _LOCAL.unpack_from(piece, at)
        magic, _, flags, method, _, _, _, _, size, name_bytes, extra_bytes = fields
        if magic != b"PK\x03\x04" or flags or method:
            break
        start = at + _LOCAL.size + name_bytes + extra_bytes
        if size == _MOST_32:
            _, _, size = struct.unpack_from("<2HQ", piece, start - extra_bytes)
        if bytes(piece[at + _LOCAL.size : at + _LOCAL.size + name_bytes]) == name.encode():
            if start + size > len(piece):
                break
            return start, size
        at = start + size
    raise ValueError(f"no record {name} as this package writes it")
