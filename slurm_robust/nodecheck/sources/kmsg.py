"""Reads the kernel log: `/dev/kmsg` or a saved one in any usual shape, the lines of this boot only.

Reading never blocks: the device is read until it has no more, a plain file to its end. The last 8 MiB count.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.sources.kmsg_line import KernelRecord, parse

_MAX_BYTES = 8 << 20
_MAX_RECORD_BYTES = 8192  # the kernel's own limit for one read of /dev/kmsg
_BOOT_LINE = ("Linux version ", "-- Reboot --", "-- Boot ")
_CLOCK_STEP_S = 60.0
_PLAIN = re.compile(rb"\[ *([0-9]{1,12}\.[0-9]{1,9})\](?! ?-- )")
_TELLS = re.compile(rb"\[ *[0-9]{1,12}\.[0-9]|[0-9]{1,5},[0-9]{1,20},[0-9]{1,20},|Linux version |-- (?:Reboot|Boot) ")
"""A part of every line that says how long the machine runs, or that it began to run."""


@dataclass(frozen=True)
class LogReading:
    """The result of one reading of the log.

    Attributes:
        records: The wanted records after the cursor, oldest first.
        cursor: The position at which the next reading may go on; plain JSON.
        error: Why the log could not be read; empty if all is well.
        errno: The error as a number, 0 if all is well.
        capped: Words that were in more lines than were to be read; the oldest of these lines were left out.
    """

    records: tuple[KernelRecord, ...] = ()
    cursor: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    errno: int = 0
    capped: frozenset[str] = frozenset()


@dataclass(frozen=True)
class KernelLog:
    """A log as it was read, for several that look for different things in it.

    Attributes:
        data: A plain file's last bytes; the device's records, each ended by a NUL.
        start: Where in the file `data` begins.
        name: `device:inode` of a plain file; empty for the device.
        error: The `error` of a `LogReading`.
        errno: The `errno` of a `LogReading`.
    """

    data: bytes = b""
    start: int = 0
    name: str = ""
    error: str = ""
    errno: int = 0

    @functools.cached_property
    def boot(self) -> int:
        """Where in `data` the last boot begins; the device holds no other boot."""
        return _last_boot(self.data) if self.name else 0

    def since(
        self,
        wanted: Callable[[str], object],
        cursor: Mapping[str, Any],
        booted_at_s: float | None = None,
        words: Iterable[str] = (),
        most: int = 0,
    ) -> LogReading:
        """Return the wanted records after the cursor.

        Args:
            wanted: Tells by its text whether to keep a record; called once for each, oldest first.
            cursor: The cursor of an earlier reading of the same boot; empty takes the whole boot.
            booted_at_s: When this boot began, for files that hold several and name dates.
            words: Only a record with one of these words can be wanted; saves a closer look at the others. None named:
                any can.
            most: The most lines with one word that are read, the newest; 0 reads all.
        """
        if self.error:
            return LogReading(error=self.error, errno=self.errno)
        if not self.name:
            return self._of_device(wanted, cursor, words, most)
        size = self.start + len(self.data)
        after = cursor.get("at") if cursor.get("file") == self.name else 0
        # A file that shrank was rotated in place.
        after = after if isinstance(after, int) and 0 <= after <= size else 0
        # A line that ends behind the cursor is new as a whole.
        begin = self.data.rfind(b"\n", 0, max(0, after - self.start)) + 1
        records = []
        lines, capped = _lines(self.data, max(self.boot, begin), b"\n", words, most)
        broken = _BrokenLines(self.data)
        for first, last in lines:
            line = self.data[first:last].decode("utf-8", "replace")
            record = parse(line)
            if record is None or not record.evidence or broken.holds(first, line, record):
                continue
            of_now = booted_at_s is None or record.wall_s is None or record.wall_s + 2 * _CLOCK_STEP_S >= booted_at_s
            if of_now and wanted(record.text):
                records.append(record)
        end = self.start + self.data.rfind(b"\n") + 1  # a line still being written is read again
        return LogReading(tuple(records), {"file": self.name, "at": end}, capped=capped)

    def _of_device(
        self, wanted: Callable[[str], object], cursor: Mapping[str, Any], words: Iterable[str], most: int
    ) -> LogReading:
        after = cursor.get("seq")
        after = after if isinstance(after, int) else -1
        records = []
        lines, capped = _lines(self.data, 0, b"\0", words, most)
        for first, last in lines:
            record = parse(self.data[first:last].decode("utf-8", "replace"))
            if record is None or record.seq is None or record.seq <= after or not record.evidence:
                continue
            if wanted(record.text):
                records.append(record)
        newest = parse(self.data[:-1].rpartition(b"\0")[2].decode("utf-8", "replace"))
        seq = max(after, newest.seq if newest and newest.seq is not None else -1)
        return LogReading(tuple(records), {"seq": seq}, capped=capped)


class _BrokenLines:
    """Tells which lines of a plain file are no records, but the rest of a record with a user's words.

    A program that saves the log as text may break a line at a line break in a file's name (`/dev/kmsg` escapes it), and
    put the same time before both parts. So a line that follows such a record with the very same stamp is not believed.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._known = (-1, b"", False)

    def holds(self, first: int, line: str, record: KernelRecord) -> bool:
        """Tell whether the line at `first` is the rest of another record; ask for lines in their order."""
        stamp = line[: len(line) - len(record.text)].encode()
        at, found = first, False
        while stamp and record.seq is None and not found and at > 0:
            end, at = at - 1, self._data.rfind(b"\n", 0, at - 1) + 1
            if not self._data.startswith(stamp, at):
                break
            if at == self._known[0] and stamp == self._known[1]:
                found = self._known[2]
                break
            before = parse(self._data[at:end].decode("utf-8", "replace"))
            found = before is not None and before.holds_users_words
        self._known = (first, stamp, found)
        return found


def _lines(
    data: bytes, begin: int, end: bytes, words: Iterable[str], most: int
) -> tuple[list[tuple[int, int]], frozenset[str]]:
    """Return the ranges of lines behind `begin` with one of these words, or of all; and the words in more than `most`.

    A word is searched in the whole text at once: line by line takes ten times as long. The search goes backwards, so
    that of too many lines the newest are found.
    """
    wanted = {word: word.encode() for word in words}
    if not wanted:
        ends = [match.start() for match in re.finditer(re.escape(end), data[begin:])]
        firsts = [begin, *(begin + at + 1 for at in ends)]
        return list(zip(firsts, [*(begin + at for at in ends), len(data)], strict=True)), frozenset()
    found: dict[int, int] = {}
    capped = set()
    for name, word in wanted.items():
        # Forwards first: without a match, that is several times as fast.
        oldest = data.find(word, begin)
        at, count = (data.rfind(word, oldest) if oldest >= 0 else -1), 0
        while at >= 0:
            if count == most > 0:
                capped.add(name)
                break
            first = data.rfind(end, begin, at) + 1 or begin
            last = data.find(end, at)
            found[first] = len(data) if last < 0 else last
            at, count = (data.rfind(word, oldest, first) if first > oldest else -1), count + 1
    return sorted(found.items()), frozenset(capped)


def _last_boot(data: bytes) -> int:
    """Return where the lines after the last start of the kernel begin.

    A new boot shows as its first line, as journalctl's separator, or as an uptime that falls by a minute or more.
    """
    boot = position = 0
    before_s = 0.0
    if _TELLS.search(data) is None:
        return 0
    for line in data.split(b"\n"):
        # By far the most lines are of dmesg's plain shape and say only when.
        plain = _PLAIN.match(line) if b"Linux version " not in line else None
        record = None if plain or not _TELLS.search(line) else parse(line.decode("utf-8", "replace"))
        uptime_s = float(plain[1]) if plain else record.uptime_s if record else None
        if uptime_s is not None:
            if uptime_s + _CLOCK_STEP_S < before_s:
                boot = position
            before_s = uptime_s
        if record is not None and record.evidence and record.text.startswith(_BOOT_LINE):
            boot = position
        position += len(line) + 1
    return boot


def load(path: Path) -> KernelLog:
    """Read the log once: `/dev/kmsg` or a plain file; anything else is refused, since it could block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return KernelLog(error=f"{path}: {error.strerror}", errno=error.errno or 1)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISCHR(mode):
            return KernelLog(_device(fd))
        if stat.S_ISREG(mode):
            return _file(fd)
        return KernelLog(error=f"{path}: neither a device nor a plain file", errno=22)
    except OSError as error:
        return KernelLog(error=f"{path}: {error.strerror}", errno=error.errno or 1)
    finally:
        os.close(fd)


def _device(fd: int) -> bytes:
    records = []
    with contextlib.suppress(BlockingIOError):
        while True:
            try:
                data = os.read(fd, _MAX_RECORD_BYTES)
            except BrokenPipeError:
                continue  # overwritten while we read: the next read goes on at the oldest that is left
            if not data:
                break
            records.append(data)
    return b"".join(record.replace(b"\0", b" ") + b"\0" for record in records)


def _file(fd: int) -> KernelLog:
    info = os.fstat(fd)
    start = max(0, info.st_size - _MAX_BYTES)
    os.lseek(fd, start, os.SEEK_SET)
    pieces = []
    while piece := os.read(fd, 1 << 20):
        pieces.append(piece)
    return KernelLog(b"".join(pieces), start, f"{info.st_dev}:{info.st_ino}")
