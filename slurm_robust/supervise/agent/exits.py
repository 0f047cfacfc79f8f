"""Reads how tasks of this node ended. The SPANK plugin writes it into a file, one line for each task.

A line is `TASK CODE SIGNAL SECONDS`. The file is removed when the step ends on this node; our open descriptor remains.
"""

from __future__ import annotations

import os

from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.messages import TaskEnded
from slurm_robust.wire import plain_file

_MAX_BYTES = 1 << 20
_MAX_FILES = 16


class _ExitsFile:
    def __init__(self, fd: int, step_id: str) -> None:
        self.fd = fd
        self.step_id = step_id
        self.rest = b""


class Exits:
    """The files of the steps that are watched."""

    def __init__(self, node: str, clock: SystemClock = CLOCK) -> None:
        self._node = node
        self._clock = clock
        self._files: dict[str, _ExitsFile | None] = {}

    def follow(self, path: str, step_id: str) -> None:
        """Read this file from now on; a file that cannot be read is not tried again."""
        if path in self._files or len(self._files) >= _MAX_FILES:
            return
        self._files[path] = None
        try:
            # The name comes from a rank's environment.
            self._files[path] = _ExitsFile(plain_file.open_plain(path), step_id)
        except (OSError, ValueError):
            return

    def forget(self) -> None:
        """Close all files: another attempt is watched from now on."""
        for file in self._files.values():
            if file is not None:
                os.close(file.fd)
        self._files.clear()

    def read_new(self) -> list[TaskEnded]:
        """Return the tasks that ended since the last call."""
        out: list[TaskEnded] = []
        for path, file in list(self._files.items()):
            if file is None:
                continue
            try:
                # Check this before the read: the plugin writes its last line before the file is removed.
                removed = os.fstat(file.fd).st_nlink == 0
                data = file.rest + os.read(file.fd, _MAX_BYTES)
            except OSError:
                removed, data = True, b""
            *lines, file.rest = data.split(b"\n")
            now_s = self._clock.now_s()
            for line in lines:
                ended = parse(line, self._node, file.step_id, now_s)
                if ended is not None:
                    out.append(ended)
            if removed:
                os.close(file.fd)
                self._files[path] = None
        return out


def parse(line: bytes, node: str, step_id: str, now_s: float) -> TaskEnded | None:
    """Return the end that one line tells of; None if the line is malformed."""
    words = line.decode("ascii", "replace").split(" ")
    try:
        task, code, number = (int(word) for word in words[:3])
        at_s = float(words[3])
    except (ValueError, IndexError):
        return None
    if len(words) != 4 or task < 0 or not 0 <= code <= 255 or not 0 <= number <= 64 or at_s - at_s != 0:
        return None
    return TaskEnded(node, step_id, task, code, number, round(max(0.0, now_s - at_s), 3))
