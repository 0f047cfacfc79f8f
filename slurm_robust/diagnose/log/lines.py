"""Reads a file as logical lines, many at once, each with its *key*: the line's bytes with every digit as 0.

Lines with equal keys only differ in digits, and a key has its line's length: results for one line (the places of its
label and of its step number) hold for all lines with that key. Lines and keys come from one pass of C code over a whole
chunk, so that nearly all lines of a log cost one look into a dictionary.

A carriage return ends a line as a newline does. NUL bytes are left out (holes of a truncated file; every second byte of
UTF-16). A line longer than `LINE_BYTES` is read in pieces that overlap.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO, cast

from slurm_robust.diagnose.log.page import NOBODY, Speaker

CHUNK_BYTES = 1 << 19
_OPENED_BY_SHELL = ("/dev/fd", "/proc/self/fd")
LINE_BYTES = 4096
"""Longer lines are cut into pieces."""
OVERLAP_BYTES = 256
"""How far pieces overlap: a text that is not longer than this is whole in one of the pieces."""

_AS_LINES = bytes.maketrans(b"\r", b"\n")
_AS_KEYS = bytes.maketrans(b"\r123456789", b"\n000000000")
_AS_KEY = bytes.maketrans(b"123456789", b"000000000")
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class LogFile:
    """One output file of a job.

    Attributes:
        path: A regular file, perhaps compressed by gzip.
        speaker: Who prints into it, if that is one rank; labels of its lines go before it.
        labelled: Its lines begin with a label of `srun --label`; None to tell by its first lines.
        continues: It continues the file before, which was rotated: speakers, steps and tracebacks go on.
        data: Its content, if it was already read; then the file is not opened.
    """

    path: Path
    speaker: Speaker = NOBODY
    labelled: bool | None = None
    continues: bool = False
    data: bytes | None = None


def key_of(line: bytes) -> bytes:
    """Return the line with every digit as 0."""
    return line.translate(_AS_KEY)


@dataclass
class Chunk:
    """Some whole lines of a file.

    Attributes:
        data: The bytes of these lines in the file.
        offset_bytes: The offset of the data in the file.
        line: Number of the first line, from 1.
        lines: The logical lines, without their ends.
        keys: The key of each.
    """

    data: bytes
    offset_bytes: int
    line: int
    lines: list[bytes] = field(init=False)
    keys: list[bytes] = field(init=False)
    _starts: list[int] = field(init=False, default_factory=list)
    _cursor: tuple[int, int] = field(init=False, default=(0, 0))
    """A place in the data, and how many newlines are before it."""

    def __post_init__(self) -> None:
        self.lines = self.data.translate(_AS_LINES, b"\0").split(b"\n")
        self.keys = self.data.translate(_AS_KEYS, b"\0").split(b"\n")
        if not self.lines[-1]:
            del self.lines[-1], self.keys[-1]

    def place(self, index: int) -> tuple[int, int]:
        """Return line number and offset in the file of a logical line, by its index; quick for ascending indices."""
        if not self._starts:
            raw = self.data.translate(_AS_LINES).split(b"\n") if b"\0" in self.data else self.lines
            self._starts = list(accumulate((len(line) + 1 for line in raw), initial=0))
        start = self._starts[index]
        at, newlines = self._cursor if self._cursor[0] <= start else (0, 0)
        newlines += self.data.count(b"\n", at, start)
        self._cursor = start, newlines
        return self.line + newlines, self.offset_bytes + start


class LogReader:
    """Reads one file up to the end that it has when it is opened: a file that grows faster would never end.

    Attributes:
        problem: Why the file was not read, or not to its end. Known when `chunks` has ended.
        size_bytes: How many bytes were read (decompressed).
        year: The year of its last change, for times without a year.
    """

    def __init__(self, path: Path, data: bytes | None = None) -> None:
        self.path = path
        self._data = data
        self.problem = ""
        self.size_bytes = 0
        self.year = 1970

    def chunks(self) -> Iterator[Chunk]:
        """Yield all lines, in order. No error is raised: a read error ends the file, and `problem` tells it."""
        if self._data is not None:
            yield from self._cut(io.BytesIO(self._data), len(self._data))
            return
        try:
            with open(_open(self.path), "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                self.year = 1970 + int(status.st_mtime / 31_556_952)
                zipped = file.read(2) == _GZIP
                file.seek(0)
                if zipped:
                    with gzip.open(file) as inner:
                        yield from self._cut(cast("IO[bytes]", inner), None)
                else:
                    yield from self._cut(file, status.st_size)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            self.problem = f"cannot be read{f' beyond byte {self.size_bytes}' if self.size_bytes else ''}: {error}"

    def _cut(self, file: IO[bytes], size_bytes: int | None) -> Iterator[Chunk]:
        rest, offset, line, left = b"", 0, 1, size_bytes
        while left is None or left > 0:
            block = file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
            if not block:
                if left is not None:
                    self.problem = f"was truncated while it was read: {left} bytes less"
                break
            left = None if left is None else left - len(block)
            self.size_bytes += len(block)
            data = rest + block
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if not end and len(data) < CHUNK_BYTES:
                rest = data
                continue
            end, keep = (end, end) if end else (len(data), len(data) - OVERLAP_BYTES)
            if data.count(0, 0, end) < end:
                yield Chunk(data[:end], offset, line)
            line += data.count(b"\n", 0, end)
            rest, offset = data[keep:], offset + keep
        if rest.strip(b"\0"):
            yield Chunk(rest, offset, line)


def pieces(line: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the pieces of a long line; one piece if it is no longer than `LINE_BYTES`."""
    start = 0
    while len(line) - start > LINE_BYTES:
        yield start, start + LINE_BYTES
        start += LINE_BYTES - OVERLAP_BYTES
    yield start, len(line)


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the first bytes of a regular file, or of a pipe that the shell has opened (`<(zcat …)`, `/dev/stdin`).

    Raises:
        OSError: the file cannot be read, or is of another kind: reading it might wait for ever.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISFIFO(mode) and (str(path.parent) in _OPENED_BY_SHELL or str(path) == "/dev/stdin"):
            os.set_blocking(file.fileno(), True)
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(max_bytes) or b""


def _open(path: Path) -> int:
    """Open a regular file; any other kind is refused without waiting."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise ValueError("it is not a regular file")
    return number
