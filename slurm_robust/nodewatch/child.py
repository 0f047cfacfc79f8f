"""Runs sources that may hang in the kernel in a child, which sends JSON lines and is abandoned when it falls silent.

A child that cannot be killed (it sleeps in a driver) is left alone and remembered, also across a restart of the
service: as long as this child exists, no other child is started, since that would hang in the same place.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Seen
from slurm_robust.nodewatch.source import NEVER_S, Source, SourceBrokenError

_PIECE_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 20
_REAP_S = 0.05
"""A killed one; the loop waits for no longer."""
_END_S = 1.0
"""A process that has closed its pipe is about to end; on a busy node that takes a moment."""
_MAX_FDS = 256
"""The service has a dozen."""

Message = Mapping[str, Any]
Send = Callable[[Message], None]
Body = Callable[[Send], None]
Take = Callable[[Message, Moment], "list[Seen]"]


class ChildSource(Source):
    """A source in a process of its own.

    Args:
        name: The name that findings have for the source.
        body: Runs in the child; returns when its work is done.
        take: Makes findings of a message, in this process.
        every_s: The body runs once in this time.
        silent_s: The child is abandoned after so long without a message.
        hung: The child that an earlier start had to abandon, from `hung`; it may be gone.
    """

    def __init__(self, name: str, body: Body, take: Take, *, every_s: float, silent_s: float, hung: str = "") -> None:
        super().__init__()
        self.name = name
        self._body, self._take = body, take
        self._every_s, self._silent_s = every_s, silent_s
        self._pid, self._rest = 0, b""
        self._started_s = 0.0
        self.hung = hung

    def open(self, moment: Moment) -> None:
        """Start the child at once."""
        self.require_none_hung()
        self._start(moment)

    def require_none_hung(self) -> None:
        """Raises `SourceBrokenError` while a child that was abandoned is still there."""
        pid = self.hung.partition(" ")[0]
        if pid.isdecimal():
            _reaped(int(pid), 0.0)  # one that only took a moment longer to end
        if self.hung and _identity(pid) == self.hung:
            raise SourceBrokenError(f"process {pid} still hangs in the kernel")
        self.hung = ""

    def _start(self, moment: Moment) -> None:
        reader, writer = os.pipe()
        gc.collect()
        gc.freeze()  # what the child does not touch stays shared
        try:
            pid = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        if pid == 0:
            _be_child(self._body, writer)
        os.close(writer)
        os.set_blocking(reader, False)
        self._pid, self.fd, self._rest = pid, reader, b""
        self._started_s = moment.monotonic_s
        self.due_s = moment.monotonic_s + self._silent_s

    def read(self, moment: Moment) -> list[Seen]:
        """Return the findings that the child has sent; at the child's end, set the time of the next child."""
        try:
            piece = os.read(self.fd, _PIECE_BYTES)
        except BlockingIOError:
            return []
        if not piece:
            return self._ended(moment)
        self.due_s = moment.monotonic_s + self._silent_s
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise SourceBrokenError("it answered too much")
        found: list[Seen] = []
        for line in lines:
            said = json.loads(line)
            if "error" in said:
                raise SourceBrokenError(str(said["error"])[:200])
            found += self._take(said, moment)
        return found

    def _ended(self, moment: Moment) -> list[Seen]:
        # A sleep in the kernel keeps a process that has closed its pipe: it is watched like a silent one.
        self._close_pipe()
        pid = self._pid
        if not _reaped(pid, _END_S):
            self._abandon()
            raise SourceBrokenError(f"process {pid} does not end")
        self._pid = 0
        self.due_s = max(moment.monotonic_s, self._started_s + self._every_s)
        return []

    def tick(self, moment: Moment) -> list[Seen]:
        """Start the next child, or give up one that is silent."""
        if self.fd >= 0:
            pid = self._pid
            self._close_pipe()
            self._abandon()
            left = f"; it cannot be killed and is left (process {pid})" if self.hung else ""
            raise SourceBrokenError(f"it said nothing for {self._silent_s:g} s{left}")
        self._start(moment)
        return []

    def _abandon(self) -> None:
        pid, self._pid = self._pid, 0
        if not pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if not _reaped(pid):
            self.hung = _identity(str(pid))

    def _close_pipe(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.due_s = -1, NEVER_S

    def close(self) -> None:
        """End the child."""
        self._close_pipe()
        self._abandon()


def _be_child(body: Body, writer: int) -> None:
    """Run the child's whole life; never return."""
    try:
        os.closerange(3, writer)
        os.closerange(writer + 1, _MAX_FDS)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a service that was killed reads no more

        def send(message: Message) -> None:
            data = json.dumps(message).encode() + b"\n"
            while data:
                data = data[os.write(writer, data) :]

        try:
            body(send)
        except BaseException as error:  # noqa: BLE001 (a probe leaves this process only by its report)
            send({"error": f"{type(error).__name__}: {error}"[:500]})
        os.close(writer)
    finally:
        os._exit(0)


def parent_gone(parent: int) -> bool:
    """True in a child whose service was killed."""
    return os.getppid() != parent


def _reaped(pid: int, within_s: float = _REAP_S) -> bool:
    end_s = time.monotonic() + within_s
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.001)


def _identity(pid: str) -> str:
    """Return `PID START` of a process that exists, empty for none: a number alone may be given out again."""
    try:
        fields = Path(f"/proc/{int(pid)}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return f"{pid} {fields[19]}" if len(fields) > 19 and fields[0] not in "ZX" else ""
