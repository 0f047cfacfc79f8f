"""Reads safetensors: a JSON header with each tensor's type, shape and position, then the bytes, without holes."""

from __future__ import annotations

import json
import math
import os
import re
from typing import IO, Any

import msgspec

LARGEST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_LATER_KIND = re.compile(r"(?:F|BF|I|U|C)(2|4|6|8|16|32|64|128)(?:_E\d+M\d+[A-Z]*)?\Z")
"""A type of a later version of the format: its kind, and its number of bits."""
ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class Tensor(msgspec.Struct, frozen=True):
    """A tensor and its place in the file."""

    kind: str
    offset: int
    size_bytes: int


class SafetensorsContent(msgspec.Struct, frozen=True):
    """The tensors by name, and the problem with the file."""

    tensors: dict[str, Tensor]
    problem: str = ""


def looks_like(head: bytes, size_bytes: int) -> bool:
    """Return whether the first nine bytes are a header's length that fits and the brace it begins with."""
    length = int.from_bytes(head[:8], "little")
    return len(head) >= 9 and head[8:9] == b"{" and 2 <= length <= min(LARGEST_HEADER_BYTES, size_bytes)


def read(file: IO[bytes]) -> SafetensorsContent:
    """Header and bounds of an open file. Raises OSError if it cannot be read."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size_bytes < 8 or length > LARGEST_HEADER_BYTES or 8 + length > size_bytes:
        return SafetensorsContent(
            {}, f"a header of {length} bytes in a file of {size_bytes}: truncated, or not a safetensors file"
        )
    try:
        header = json.loads(file.read(length), parse_constant=_no_number)
        tensors = {name: _tensor(entry, 8 + length) for name, entry in header.items() if name != "__metadata__"}
        notes = header.get("__metadata__") or {}
        strange = [name for name, value in notes.items() if not isinstance(value, str)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return SafetensorsContent({}, f"its header is damaged: {error or type(error).__name__}")
    if strange:
        return SafetensorsContent({}, f"its header is damaged: {strange[0]!r} in __metadata__ is not text")
    at = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda one: (one[1].offset, one[1].size_bytes)):
        if tensor.offset != at:
            return SafetensorsContent(
                tensors, f"tensor {name} begins at byte {tensor.offset}, the one before ends at {at}"
            )
        at += tensor.size_bytes
    if at != size_bytes:
        return SafetensorsContent(
            tensors, f"{size_bytes} bytes, its header tells {at}" + (" (truncated)" * (at > size_bytes))
        )
    return SafetensorsContent(tensors)


def _tensor(entry: Any, start: int) -> Tensor:
    begin, end = entry["data_offsets"]
    shape = entry["shape"]
    if not all(type(n) is int and n >= 0 for n in (begin, end, *shape)):
        raise ValueError(f"an offset or a length that is not valid: {entry}"[:200])
    later = _LATER_KIND.match(entry["dtype"])
    bits = ITEM_BITS.get(entry["dtype"], int(later[1]) if later else None)
    if bits is None:
        raise ValueError(f"a type {entry['dtype'][:20]!r} that the format has not")
    if end < begin or (end - begin) * 8 != math.prod(shape) * bits:
        raise ValueError(f"{end - begin} bytes for shape {shape} of {entry['dtype']}")
    return Tensor(entry["dtype"], start + begin, end - begin)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
