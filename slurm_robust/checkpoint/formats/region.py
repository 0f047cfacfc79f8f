"""Reads a part of an open file like a file of its own: a piece of a `.distcp`."""

from __future__ import annotations

import io
import os
from typing import IO, Any


class Region(io.RawIOBase):
    """A part of an open file, as a file of its own."""

    def __init__(self, file: IO[bytes], start: int, size_bytes: int) -> None:
        super().__init__()
        self._fd, self._start, self._size, self._at = file.fileno(), start, size_bytes, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As a file does."""
        at = offset + (0 if whence == os.SEEK_SET else self._at if whence == os.SEEK_CUR else self._size)
        if at < 0:
            raise ValueError(f"offset {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        """As a file does."""
        view = memoryview(buffer)[: max(0, self._size - self._at)]
        got = os.preadv(self._fd, [view], self._start + self._at) if len(view) else 0
        self._at += got
        return got
