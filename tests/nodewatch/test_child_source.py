"""Children: what they say, and those that hang, crash or talk rubbish."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import wait_until

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodewatch.child import ChildSource, Message, Send
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Seen
from slurm_robust.nodewatch.source import SourceBrokenError


def take(message: Message, moment: Moment) -> list[Seen]:
    """The message's number as a finding's time."""
    return [Seen(NodeFinding(0, message["number"], "poll", "k", "note", "x"))]


def child(body: Callable[[Send], None], **more: Any) -> ChildSource:
    """One that is started."""
    made = ChildSource("poll", body, take, every_s=0.0, silent_s=0.2, **more)
    made.open(Moment.now())
    return made


def answer(source: ChildSource) -> list[Seen]:
    """Wait for what it has to say, as the service does."""
    select.select([source.fd], [], [], 10)
    return source.read(Moment.now())


def test_what_a_child_says_arrives_and_it_runs_again() -> None:
    """Its end is no fault: the next one starts when it is due."""
    source = child(lambda send: send({"number": os.getpid()}))
    first = answer(source)[0].finding.at_s
    assert answer(source) == []
    assert source.tick(Moment.now()) == []
    assert answer(source)[0].finding.at_s != first
    source.close()


def test_a_child_that_is_silent_is_killed() -> None:
    """It holds nobody up, and is gone; nothing is remembered of one that could be killed."""
    source = child(lambda send: time.sleep(60))
    pid = source._pid
    with pytest.raises(SourceBrokenError, match="said nothing"):
        source.tick(Moment.now())

    def reaped() -> bool:
        with contextlib.suppress(SourceBrokenError):  # on a busy node it may take longer than the loop waits
            source.require_none_hung()
        return not Path(f"/proc/{pid}").exists()

    wait_until(reaped, 5, "it is reaped")
    assert source.hung == ""
    source.close()


def test_a_child_that_cannot_be_killed_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is there no other one is started, also by the service's next start; then all is well again."""
    source = child(lambda send: time.sleep(60))
    pid = source._pid
    monkeypatch.setattr(os, "kill", lambda *_: None)  # as if it slept in a driver
    with pytest.raises(SourceBrokenError, match="cannot be killed"):
        source.tick(Moment.now())
    assert source.hung.startswith(f"{pid} ")
    with pytest.raises(SourceBrokenError, match="still hangs"):
        child(lambda send: None, hung=source.hung)
    monkeypatch.undo()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    child(lambda send: None, hung=source.hung).close()


@pytest.mark.parametrize(
    "body",
    [
        lambda send: os.kill(os.getpid(), signal.SIGKILL),
        lambda send: send({"number": 1 / 0}),
        lambda send: [os.write(fd, b"rubbish\n") for fd in range(3, 64) if _is_open(fd)],
    ],
    ids=["killed", "exception", "rubbish"],
)
def test_a_child_that_breaks(body: Callable[[Send], None]) -> None:
    """Breaks only itself."""
    source = child(body)
    with contextlib.suppress(SourceBrokenError, ValueError):
        assert answer(source) == []
    source.close()
    assert source.fd == -1


def test_a_child_holds_nothing_of_ours(tmp_path: Path) -> None:
    """No lock, no socket, no file: only its pipe, and /dev/null."""

    def body(send: Send) -> None:
        names = [Path(f"/proc/self/fd/{fd}").readlink().name for fd in range(64) if _is_open(fd)]
        send({"number": sum(name == "null" or name.startswith("pipe:") for name in names) - 100 * len(names)})

    with (tmp_path / "lock").open("w"):
        source = child(body)
        number = answer(source)[0].finding.at_s
        source.close()
    assert number == -99 * 5  # 0, 1, 2, /dev/null itself and the pipe


def _is_open(fd: int) -> bool:
    return Path(f"/proc/self/fd/{fd}").is_symlink()
