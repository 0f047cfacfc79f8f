"""Run functions in processes of their own, all at once, and abandon those that do not come back.

A process that reads a dead mount or a hung driver sleeps in the kernel and cannot be killed: nobody may wait for it.
So each function gets a process that holds no descriptor of ours but its pipe; at the deadline it is sent SIGKILL and
forgotten, and the kernel ends it whenever it can.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_ANSWER_BYTES = 4 << 20


@dataclass(frozen=True)
class Outcome:
    """How a function in its own process ended.

    Attributes:
        value: What it returned (through JSON), where `error` is empty.
        error: `timeout`, or the exception with its message, or how the process died.
    """

    value: Any = None
    error: str = ""
    duration_s: float = 0.0

    @property
    def timed_out(self) -> bool:
        """True where it was abandoned."""
        return self.error == "timeout"


@dataclass
class _Child:
    pid: int
    fd: int
    started_s: float
    deadline_s: float
    answer: bytearray


def run_all(tasks: Mapping[str, tuple[Callable[[], Any], float]]) -> dict[str, Outcome]:
    """Run each `name: (function, seconds)` in its own process; returns when all have answered or are overdue.

    Call it from a process with one thread only (it forks). Functions return plain JSON values.
    """
    outcomes: dict[str, Outcome] = {}
    children: dict[int, str] = {}
    running: dict[str, _Child] = {}
    poll = select.poll()
    for name, (function, seconds) in tasks.items():
        try:
            child = _start(function, seconds)
        except OSError as error:
            outcomes[name] = Outcome(error=f"no process could be started: {error}")
            continue
        running[name] = child
        children[child.fd] = name
        poll.register(child.fd, select.POLLIN)
    while running:
        left_s = min(child.deadline_s for child in running.values()) - time.monotonic()
        for fd, _ in poll.poll(max(0, int(left_s * 1000) + 1)):
            name = children[fd]
            child = running[name]
            piece = os.read(fd, 1 << 16)
            child.answer += piece
            if not piece or len(child.answer) > _MAX_ANSWER_BYTES:
                outcomes[name] = _finish(child)
                poll.unregister(fd)
                del running[name]
        now_s = time.monotonic()
        for name in [name for name, child in running.items() if child.deadline_s <= now_s]:
            child = running.pop(name)
            poll.unregister(child.fd)
            _abandon(child)
            outcomes[name] = Outcome(error="timeout", duration_s=now_s - child.started_s)
    return {name: outcomes[name] for name in tasks}


def _start(function: Callable[[], Any], seconds: float) -> _Child:
    reader, writer = os.pipe()
    started_s = time.monotonic()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        _be_child(function, reader, writer)
    os.close(writer)
    return _Child(pid, reader, started_s, started_s + seconds, bytearray())


def _be_child(function: Callable[[], Any], reader: int, writer: int) -> None:
    """The child's whole life; never returns.

    It gives up stdin, stdout and stderr: whoever waits for the end of our output (slurmd does) must not wait for a
    process that hangs in the kernel.
    """
    try:
        os.close(reader)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        answer = json.dumps({"value": function()})
    except BaseException as error:  # noqa: BLE001 (whatever a probe does, its report is the only way out)
        answer = json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})
    try:
        data = answer.encode()
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def _finish(child: _Child) -> Outcome:
    took_s = time.monotonic() - child.started_s
    os.close(child.fd)
    if len(child.answer) > _MAX_ANSWER_BYTES:
        _abandon(child, closed=True)
        return Outcome(error=f"answered more than {_MAX_ANSWER_BYTES} bytes", duration_s=took_s)
    # The pipe is closed, so the process is past its work; it still may not be waited for without limit.
    status = _reap(child.pid, give_up_s=0.5)
    try:
        said = json.loads(child.answer)
    except ValueError:
        how = "without a word" if status is None else f"with wait status {status:#x}, without an answer"
        return Outcome(error=f"the process ended {how}", duration_s=took_s)
    return Outcome(value=said.get("value"), error=said.get("error", ""), duration_s=took_s)


def _reap(pid: int, give_up_s: float) -> int | None:
    end_s = time.monotonic() + give_up_s
    pause_s = 0.0002
    while time.monotonic() < end_s:
        with contextlib.suppress(ChildProcessError):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.02)
            continue
        return None
    return None


def _abandon(child: _Child, *, closed: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child.pid, signal.SIGKILL)
    if not closed:
        os.close(child.fd)
    # One short look keeps an ordinary sleeper from staying a zombie; one that sleeps in the kernel is left.
    _reap(child.pid, give_up_s=0.01)
