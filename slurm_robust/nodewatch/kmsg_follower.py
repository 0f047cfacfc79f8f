"""Follows the kernel log (source `kmsg`): a device by poll, and a plain file by its size.

A read takes a bounded piece, so that a flood of lines costs no memory. After a restart, the cursor in the state folder
skips records that were judged before; lost records, which the kernel overwrote before they could be read, are reported.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodecheck.catalogue.job_urgency import NOTE
from slurm_robust.nodecheck.sources.kmsg import KernelLog
from slurm_robust.nodewatch.kernel_lines import KernelLines
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Seen
from slurm_robust.nodewatch.source import NEVER_S, Source, SourceBrokenError

_PIECE_BYTES = 256 << 10
_RECORD_BYTES = 8192  # the kernel's own limit for one read of /dev/kmsg
_BACK_BYTES = 8 << 20
"""The size of the end that is read of a plain file that was never read."""
_FILE_POLL_S = 0.25
_LATE_S = 10.0
"""A line may come so late, or the kernel's clock and ours differ by so much."""


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class KmsgFollower(Source):
    """Follows one log.

    Args:
        path: `/dev/kmsg`, or a plain file.
        lines: Judges what comes.
        cursor: The `cursor` of an earlier start in this boot; empty takes the whole boot.
        opened: Opens the path, for tests.
    """

    name = "kmsg"

    def __init__(
        self, path: Path, lines: KernelLines, cursor: Mapping[str, Any], opened: Callable[[Path], int] = _opened
    ) -> None:
        super().__init__()
        self._path, self._lines, self._open = path, lines, opened
        self._held = -1
        self._plain = False
        seq, file, at = cursor.get("seq"), cursor.get("file"), cursor.get("at")
        self._seq = seq if isinstance(seq, int) else -1
        self._end_s = -math.inf
        """When the log was last read to its end, in seconds since the epoch: later records are not older."""
        self._file, self._at = (file, at) if isinstance(file, str) and isinstance(at, int) else ("", 0)

    @property
    def cursor(self) -> dict[str, Any]:
        """The position up to which everything is judged; plain JSON."""
        return {"file": self._file, "at": self._at} if self._plain else {"seq": self._seq}

    def open(self, moment: Moment) -> None:
        """Open as `Source.open` does; a file that does not exist yet is an error, and is tried again."""
        self._held = self._open(self._path)
        info = os.fstat(self._held)
        self._plain = stat.S_ISREG(info.st_mode)
        if self._plain:
            self.due_s = moment.monotonic_s
            self._begin(info)
        elif stat.S_ISCHR(info.st_mode) or stat.S_ISSOCK(info.st_mode):
            self.fd = self._held
        else:
            raise SourceBrokenError(f"{self._path}: neither a device nor a plain file")

    def _begin(self, info: os.stat_result) -> None:
        """Find where to go on in a plain file: at the cursor, if it is the same file and has not shrunk."""
        name = f"{info.st_dev}:{info.st_ino}"
        if name != self._file or self._at > info.st_size:
            self._at = max(0, info.st_size - _BACK_BYTES) if not self._file else 0
        self._file = name

    def close(self) -> None:
        """Close as `Source.close` does."""
        if self._held >= 0:
            os.close(self._held)
        self._held = self.fd = -1
        self.due_s = NEVER_S

    def read(self, moment: Moment) -> list[Seen]:
        """Read the device's next records."""
        records: list[bytes] = []
        size = lost = 0
        is_whole = False
        while size < _PIECE_BYTES:
            try:
                data = os.read(self._held, _RECORD_BYTES)
            except BlockingIOError:
                is_whole = True
                break
            except BrokenPipeError:
                continue  # overwritten: the next read goes on at the oldest that is left, and its number tells
            if not data:
                raise SourceBrokenError(f"{self._path} has ended")
            seq = _number(data)
            if seq is None or seq <= self._seq:
                continue
            if self._seq >= 0:
                lost += seq - self._seq - 1
            self._seq = seq
            records.append(data.replace(b"\0", b" "))
            size += len(data)
        gap = [_gap(lost, moment)] if lost else []
        found = self._judged(KernelLog(b"".join(record + b"\0" for record in records)), moment)
        if is_whole:
            self._end_s = moment.wall_s
        return [*gap, *found]

    def tick(self, moment: Moment) -> list[Seen]:
        """Return findings in what a plain file has gained."""
        self.due_s = moment.monotonic_s + _FILE_POLL_S
        try:
            there = self._path.stat()
        except FileNotFoundError:
            there = os.fstat(self._held)
        if (there.st_dev, there.st_ino) != _identity(self._held):
            rest = self._piece(moment)
            if not rest and self._at >= os.fstat(self._held).st_size:
                raise SourceBrokenError(f"{self._path} is another file now")
            self.due_s = moment.monotonic_s
            return rest
        if there.st_size == self._at:
            self._end_s = moment.wall_s
            return []
        if there.st_size < self._at:
            self._at = 0  # rotated in place
        return self._piece(moment)

    def _piece(self, moment: Moment) -> list[Seen]:
        data = os.pread(self._held, _PIECE_BYTES, self._at)
        whole = data.rfind(b"\n") + 1
        if len(data) == _PIECE_BYTES:
            self.due_s = moment.monotonic_s  # a flood: the rest is read at once
        elif not whole:
            return []  # a line that is still being written
        data = data[: whole or len(data)]
        self._at += len(data)
        return self._judged(KernelLog(data, 0, self._file), moment)

    def _judged(self, log: KernelLog, moment: Moment) -> list[Seen]:
        return self._lines.judge(log, moment._replace(since_s=self._end_s - _LATE_S)) if log.data else []


def _identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def _number(record: bytes) -> int | None:
    """Return the kernel's number of a raw record."""
    fields = record.split(b",", 2)
    return int(fields[1]) if len(fields) == 3 and fields[1].isdigit() else None


def _gap(lost: int, moment: Moment) -> Seen:
    text = "the kernel log was written faster than it could be read: records are missing"
    return Seen(NodeFinding(0, moment.wall_s, "kmsg", "kmsg_gap", NOTE, text), lost)
