"""The kernel log: `/dev/kmsg` or a saved one in any usual shape, the lines of this boot only.

Reading never blocks: the device is read until it has no more, a plain file to its end. The last 8 MiB count.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.kmsg_line import Record, parse

_MAX_BYTES = 8 << 20
_MAX_RECORD_BYTES = 8192  # the kernel's own limit for one read of /dev/kmsg
_BOOT_LINE = ("Linux version ", "-- Reboot --", "-- Boot ")
_CLOCK_STEP_S = 60.0


@dataclass(frozen=True)
class Log:
    """What one reading gave.

    Attributes:
        records: The wanted records after the cursor, oldest first.
        cursor: Where the next reading may go on; plain JSON.
        error: Why nothing could be read; empty where all is well.
        errno: The same as a number, 0 where all is well.
    """

    records: tuple[Record, ...] = ()
    cursor: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    errno: int = 0


def of_this_boot(
    records: Iterable[tuple[int, Record]], wanted: Callable[[str], object], booted_at_s: float | None = None
) -> list[tuple[int, Record]]:
    """The wanted records that came after the last start of the kernel, each with its position.

    A new boot shows as its first line, as journalctl's separator, or as an uptime that falls by a minute or more; with
    `booted_at_s`, also as a date before it.
    """
    kept: list[tuple[int, Record]] = []
    before_s = 0.0
    for position, record in records:
        if record.uptime_s is not None:
            if record.uptime_s + _CLOCK_STEP_S < before_s:
                kept.clear()
            before_s = record.uptime_s
        if record.text.startswith(_BOOT_LINE):
            kept.clear()
        if booted_at_s is not None and record.wall_s is not None and record.wall_s + 2 * _CLOCK_STEP_S < booted_at_s:
            continue
        if wanted(record.text):
            kept.append((position, record))
    return kept


def read(
    path: Path, wanted: Callable[[str], object], cursor: Mapping[str, Any], booted_at_s: float | None = None
) -> Log:
    """Read the log once.

    Args:
        path: `/dev/kmsg` or a plain file; anything else is refused, since it could block.
        wanted: Says whether to keep a record, by its text.
        cursor: Of an earlier reading of the same boot; empty reads the whole boot.
        booted_at_s: When this boot began, for files that hold several and name dates.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return Log(error=f"{path}: {error.strerror}", errno=error.errno or 1)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISCHR(mode):
            return _read_device(fd, wanted, cursor)
        if stat.S_ISREG(mode):
            return _read_file(fd, wanted, cursor, booted_at_s)
        return Log(error=f"{path}: neither a device nor a plain file", errno=22)
    except OSError as error:
        return Log(error=f"{path}: {error.strerror}", errno=error.errno or 1)
    finally:
        os.close(fd)


def _read_device(fd: int, wanted: Callable[[str], object], cursor: Mapping[str, Any]) -> Log:
    after = cursor.get("seq")
    after = after if isinstance(after, int) else -1
    last = after
    records = []
    with contextlib.suppress(BlockingIOError):
        while True:
            try:
                data = os.read(fd, _MAX_RECORD_BYTES)
            except BrokenPipeError:
                continue  # overwritten while we read: the next read goes on at the oldest that is left
            if not data:
                break
            record = parse(data.decode("utf-8", "replace"))
            if record is None or record.seq is None or record.seq <= after:
                continue
            last = record.seq
            if wanted(record.text):
                records.append(record)
    return Log(tuple(records), {"seq": last})


def _read_file(fd: int, wanted: Callable[[str], object], cursor: Mapping[str, Any], booted_at_s: float | None) -> Log:
    info = os.fstat(fd)
    name = f"{info.st_dev}:{info.st_ino}"
    after = cursor.get("at") if cursor.get("file") == name else 0
    # A file that shrank was rotated in place.
    after = after if isinstance(after, int) and 0 <= after <= info.st_size else 0
    start = max(0, info.st_size - _MAX_BYTES)
    os.lseek(fd, start, os.SEEK_SET)
    pieces = []
    while piece := os.read(fd, 1 << 20):
        pieces.append(piece)
    data = b"".join(pieces)
    kept = of_this_boot(_records(data, start), wanted, booted_at_s)
    end = start + data.rfind(b"\n") + 1  # a line still being written is read again
    return Log(tuple(record for position, record in kept if position > after), {"file": name, "at": end})


def _records(data: bytes, start: int) -> Iterator[tuple[int, Record]]:
    """Each record with the offset behind its line."""
    position = start
    for line in data.split(b"\n"):
        position += len(line) + 1
        record = parse(line.decode("utf-8", "replace"))
        if record is not None:
            yield position, record
