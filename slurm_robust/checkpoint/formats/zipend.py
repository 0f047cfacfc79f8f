"""Checks the end of a zip as torch reads it: directory, 64-bit record and locator.

Python's zipfile accepts much that torch refuses.
"""

from __future__ import annotations

import os
import struct
from typing import IO

_ENTRY = struct.Struct("<4s24sHHH12s")
_RECORD_64 = struct.Struct("<4sQHHLLQQQQ")
_LOCATOR_64 = struct.Struct("<4sLQL")
_END = struct.Struct("<4sHHHHLLH")


def problem(file: IO[bytes], start: int, count: int) -> str:
    """Return what is wrong from the directory of `count` entries at byte `start` on; empty if nothing is.

    Raises:
        OSError: the file cannot be read.
    """
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(start)
    tail = file.read(max(0, size_bytes - start))
    at = 0
    try:
        for _ in range(count):
            magic, _, name, extra, comment, _ = _ENTRY.unpack_from(tail, at)
            if magic != b"PK\x01\x02":
                return f"zip directory: no entry at byte {start + at}"
            at += _ENTRY.size + name + extra + comment
        length = at
        if tail[at : at + 4] == b"PK\x06\x06":
            record = _RECORD_64.unpack_from(tail, at)
            locator = _LOCATOR_64.unpack_from(tail, at + _RECORD_64.size)
            if (record[1], *record[4:]) != (44, 0, 0, count, count, length, start):
                return "zip directory: its 64-bit end record is damaged"
            if locator != (b"PK\x06\x07", 0, start + at, 1):
                return "zip directory: the locator of its 64-bit end record is damaged"
            at += _RECORD_64.size + _LOCATOR_64.size
        end = _END.unpack_from(tail, at)
    except struct.error:
        return "zip directory: cut off"
    if end[0] != b"PK\x05\x06":
        return f"zip directory: no end record at byte {start + at}"
    return "" if at + _END.size + end[7] == len(tail) else "zip directory: something follows its end"
