"""How tasks of this node ended, by the word of slurmstepd: the SPANK plugin writes a line for each into a file.

`TASK CODE SIGNAL SECONDS` a line. The file goes when the step ends on this node; it is read on through its descriptor.
"""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

_MAX_BYTES = 1 << 20
_MAX_FILES = 16


class Ended(NamedTuple):
    """A task that ended.

    Attributes:
        step_id: Its step.
        code: Exit code; 0 where a signal ended it.
        sig: Number of that signal, 0 for none.
        age_s: How long ago.
    """

    step_id: str
    task: int
    code: int
    sig: int
    age_s: float


class _ExitsFile:
    def __init__(self, fd: int, step_id: str) -> None:
        self.fd = fd
        self.step_id = step_id
        self.rest = b""


class Exits:
    """The files of the steps that are watched."""

    def __init__(self) -> None:
        self._files: dict[str, _ExitsFile | None] = {}

    def follow(self, path: str, step_id: str) -> None:
        """Read this file from now on; one that cannot be read is not tried again."""
        if path in self._files or len(self._files) >= _MAX_FILES:
            return
        self._files[path] = None
        try:
            # The name comes out of a rank's environment: a pipe there must not hold the agent up.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (OSError, ValueError):
            return
        if stat.S_ISREG(os.fstat(fd).st_mode):
            self._files[path] = _ExitsFile(fd, step_id)
        else:
            os.close(fd)

    def forget(self) -> None:
        """Another attempt is watched."""
        for file in self._files.values():
            if file is not None:
                os.close(file.fd)
        self._files.clear()

    def news(self) -> list[Ended]:
        """Tasks that ended since the last look."""
        out: list[Ended] = []
        for path, file in list(self._files.items()):
            if file is None:
                continue
            try:
                # Before the read: what is written after it comes before the file goes.
                gone = os.fstat(file.fd).st_nlink == 0
                data = file.rest + os.read(file.fd, _MAX_BYTES)
            except OSError:
                gone, data = True, b""
            *lines, file.rest = data.split(b"\n")
            now = time.time()
            for line in lines:
                ended = parse(line, file.step_id, now)
                if ended is not None:
                    out.append(ended)
            if gone:
                os.close(file.fd)
                self._files[path] = None
        return out


def parse(line: bytes, step_id: str, now_s: float) -> Ended | None:
    """One line; None where it is none."""
    words = line.decode("ascii", "replace").split(" ")
    try:
        task, code, sig = (int(word) for word in words[:3])
        at_s = float(words[3])
    except (ValueError, IndexError):
        return None
    if len(words) != 4 or task < 0 or not 0 <= code <= 255 or not 0 <= sig <= 64 or at_s - at_s != 0:
        return None
    return Ended(step_id, task, code, sig, round(max(0.0, now_s - at_s), 3))
