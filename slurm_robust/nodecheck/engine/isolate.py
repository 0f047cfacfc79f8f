"""Runs functions in processes beside this one, and abandons processes that do not come back.

A process that reads a dead mount or a hung driver sleeps in the kernel and cannot be killed, so no function runs in
this process. Each lane is a process that runs its functions one after another and holds only its pipe of our
descriptors; all lanes run at once. When a function is overdue its process is sent SIGKILL and forgotten, and the kernel
ends it when it can; a new process does the rest of the lane.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_MAX_ANSWER_BYTES = 4 << 20
_MAX_HANGS = 2
"""The number of overdue functions after which the rest of a lane is not tried: they would hang, too."""


class Task(NamedTuple):
    """A function to run.

    Attributes:
        function: Returns plain JSON values.
        deadline_s: The time limit from the function's start.
        lane: Functions of one lane share a process, one after another, and values that they read once; empty is a lane
            of its own, for a function that may block in the kernel.
    """

    function: Callable[[], Any]
    deadline_s: float
    lane: str = ""


@dataclass(frozen=True)
class Outcome:
    """The end of a function.

    Attributes:
        value: The function's result (through JSON), if `error` is empty.
        error: `timeout`, or the exception with its message, or how its process died.
    """

    value: Any = None
    error: str = ""
    duration_s: float = 0.0

    @property
    def timed_out(self) -> bool:
        """Whether it was abandoned."""
        return self.error == "timeout"


@dataclass
class _Lane:
    """A process and its remaining functions; the first of `left` is under way."""

    left: list[tuple[str, Task]]
    hangs: int = 0
    pid: int = 0
    fd: int = -1
    started_s: float = 0.0
    deadline_s: float = 0.0
    said: bytearray = field(default_factory=bytearray)

    def note_next(self) -> None:
        """Note that the first of `left` starts now."""
        self.started_s = time.monotonic()
        self.deadline_s = self.started_s + (self.left[0][1].deadline_s if self.left else _EXIT_S)


_EXIT_S = 0.5
"""The time that a process may take to end after its last answer."""


def no_progress(waiting: Sequence[str]) -> None:
    """Do nothing: the default for `progress`."""


def run_all(tasks: Mapping[str, Task], progress: Callable[[Sequence[str]], None] = no_progress) -> dict[str, Outcome]:
    """Run all tasks; returns when each has answered or is overdue.

    Call it from a process with one thread only (it forks). `progress` gets the names that have not answered yet.
    """
    outcomes: dict[str, Outcome] = {}
    lanes: dict[str, list[tuple[str, Task]]] = {}
    for name, task in tasks.items():
        lanes.setdefault(task.lane or f"/{name}", []).append((name, task))
    running: dict[int, _Lane] = {}
    poll = select.poll()

    def begin(lane: _Lane) -> None:
        try:
            _start(lane)
        except OSError as error:
            outcomes.update({name: Outcome(error=f"no process could be started: {error}") for name, _ in lane.left})
            return
        running[lane.fd] = lane
        poll.register(lane.fd, select.POLLIN)

    def leave(lane: _Lane) -> None:
        poll.unregister(lane.fd)
        del running[lane.fd]
        os.close(lane.fd)

    # The lane with the most to do begins first: a node with few free cores waits for it alone.
    for left in sorted(lanes.values(), key=len, reverse=True):
        begin(_Lane(left))
    while running:
        progress([name for name in tasks if name not in outcomes])
        wait_s = min(lane.deadline_s for lane in running.values()) - time.monotonic()
        for fd, _ in poll.poll(max(0, int(wait_s * 1000) + 1)):
            lane = running[fd]
            piece = os.read(fd, 1 << 16)
            lane.said += piece
            _take(lane, outcomes)
            if not piece or len(lane.said) > _MAX_ANSWER_BYTES:
                leave(lane)
                _end(lane, outcomes, ended=not piece)
                if lane.left:
                    begin(lane)
        now_s = time.monotonic()
        for lane in [lane for lane in running.values() if lane.deadline_s <= now_s]:
            leave(lane)
            _abandon(lane.pid)
            _overdue(lane, outcomes)
            if lane.left:
                begin(lane)
    progress(())
    return {name: outcomes[name] for name in tasks}


def _start(lane: _Lane) -> None:
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        _be_child([task.function for _, task in lane.left], reader, writer)
    os.close(writer)
    lane.pid, lane.fd, lane.said = pid, reader, bytearray()
    lane.note_next()


def _be_child(functions: list[Callable[[], Any]], reader: int, writer: int) -> None:
    """Run the child's whole life; never return.

    The child gives up stdin, stdout and stderr: slurmd waits for the end of our output, and must not wait for a process
    that hangs in the kernel.
    """
    try:
        os.close(reader)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        for function in functions:
            try:
                answer = json.dumps({"value": function()})
            except BaseException as error:  # noqa: BLE001 (a probe leaves this process only by its report)
                answer = json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})
            data = answer.encode() + b"\n"
            while data:
                data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def _take(lane: _Lane, outcomes: dict[str, Outcome]) -> None:
    """Take the whole answers off what a lane has said."""
    *lines, rest = bytes(lane.said).split(b"\n")
    lane.said = bytearray(rest)
    for line in lines:
        if not lane.left:
            return
        name, _ = lane.left.pop(0)
        said = json.loads(line)
        took_s = time.monotonic() - lane.started_s
        outcomes[name] = Outcome(value=said.get("value"), error=said.get("error", ""), duration_s=took_s)
        lane.note_next()


def _end(lane: _Lane, outcomes: dict[str, Outcome], *, ended: bool) -> None:
    """Handle a process that closed its pipe, or said too much: give its present function an outcome."""
    status = _reap(lane.pid, give_up_s=_EXIT_S) if ended else None
    if not ended:
        _abandon(lane.pid)
    if not lane.left:
        return
    name, _ = lane.left.pop(0)
    how = "without a status" if status is None else f"with wait status {status:#x}, without an answer"
    error = f"the process ended {how}" if ended else f"answered more than {_MAX_ANSWER_BYTES} bytes"
    outcomes[name] = Outcome(error=error, duration_s=time.monotonic() - lane.started_s)


def _overdue(lane: _Lane, outcomes: dict[str, Outcome]) -> None:
    """Handle the function under way, which did not come back in time."""
    if not lane.left:
        return
    name, _ = lane.left.pop(0)
    outcomes[name] = Outcome(error="timeout", duration_s=time.monotonic() - lane.started_s)
    lane.hangs += 1
    if lane.hangs >= _MAX_HANGS:
        outcomes.update({other: Outcome(error=f"not tried: {name} hung before it") for other, _ in lane.left})
        lane.left.clear()


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


def _abandon(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    # One short look keeps an ordinary sleeper from staying a zombie; one that sleeps in the kernel is left.
    _reap(pid, give_up_s=0.01)
