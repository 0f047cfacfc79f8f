"""What a fault may not do to the published state: hide a change, or delay it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import parse
from slurm_robust.daemon.api import node_rows
from slurm_robust.daemon.api.state_lines import CHANGED_NODES
from slurm_robust.daemon.api.state_publisher import StatePublisher
from slurm_robust.daemon.api.state_snapshot import FILE_NAME, Snapshots


class FakePipe:
    """A pipe to a process that reads only when it is told to."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.waiting = 0
        self.transport = self

    def write(self, line: bytes) -> None:
        """Take a line."""
        self.lines.append(line)

    def is_closing(self) -> bool:
        """It stays open."""
        return False

    def get_write_buffer_size(self) -> int:
        """Bytes that the process has not read yet."""
        return self.waiting


class FakeHttp:
    """The HTTP process, which lives."""

    returncode = None

    def __init__(self) -> None:
        self.stdin = FakePipe()


class Stage:
    """A daemon that publishes into a folder, and to a process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.http = folder, FakeHttp()
        self.world = World(folder / "journal", FakeSlurm(), parse(""))
        self.snapshots = Snapshots(self.world.daemon)
        self.publisher = StatePublisher(self.world.daemon.context, folder, self.snapshots)
        self.publisher._process = self.http  # type: ignore[assignment]
        self.world.run(20, step_s=1.0)
        self.tick()

    def tick(self, after_s: float = 0.0) -> None:
        """Publish, if something is to be published after so many seconds without a poll."""
        self.world.slurm.pass_s(after_s)
        asyncio.run(self.publisher.tick())

    @property
    def now_s(self) -> float:
        """The time, as a snapshot has it."""
        return round(self.world.slurm.now_s, 3)

    @property
    def written_at_s(self) -> float:
        """Of the file."""
        return float(json.loads((self.folder / FILE_NAME).read_text())["at_s"])

    def drain(self, *names: str) -> None:
        """Nodes change, and the daemon sees it."""
        slurm, daemon = self.world.slurm, self.world.daemon
        for name in names:
            slurm.state.nodes[name] = replace(slurm.state.nodes[name], flags=frozenset(("DRAIN",)), reason="bad fan")
        daemon.context.readings.expire()
        self.world.run(8, step_s=1.0)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """One that has published."""
    made = Stage(tmp_path)
    yield made
    made.world.journal.close()


def test_a_row_that_could_not_be_made_hides_no_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made with the next snapshot, and so are all others that have changed."""
    stage.drain("n1", "n2")

    def failing(_: object) -> bytes:
        raise TypeError("no JSON")

    with monkeypatch.context() as patched:
        patched.setattr(node_rows, "encode", failing)
        with pytest.raises(TypeError):
            stage.snapshots.take()
    assert json.loads(stage.snapshots.take().whole()) == published(stage.world.daemon)


def test_incidents_that_could_not_be_read_are_read_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the journal has not changed since."""
    job = stage.world.slurm.run_job(("n1", "n2"))
    stage.world.claim(job.ref.job_id, ("n1",))
    stage.world.run(8)

    def failing(*_: object, **__: object) -> list[object]:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(stage.world.journal, "incidents", failing)
        with pytest.raises(sqlite3.OperationalError):
            stage.snapshots.take()
    assert stage.snapshots.take().state["incidents"]


@pytest.mark.parametrize("back_s", [20.0, 45.0, 4000.0])
def test_a_clock_that_is_set_back_keeps_nothing_from_being_published(stage: Stage, back_s: float) -> None:
    """A dashboard calls a state of half a minute old."""
    stage.world.slurm.now_s -= back_s
    stage.tick()
    assert stage.written_at_s == stage.now_s
    stage.world.daemon.context.journal.put("x", "y")
    stage.tick(after_s=11.0)
    assert stage.written_at_s == stage.now_s


def test_a_start_that_was_put_off_is_not_put_off_by_the_clock(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP process has ended, and is to be started again in a second."""
    started = list[object]()

    async def start(*argv: object, **_: object) -> FakeHttp:
        started.append(argv)
        return FakeHttp()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    stage.http.returncode = 1  # type: ignore[assignment]
    stage.tick(after_s=11.0)
    assert not started
    stage.world.slurm.now_s -= 4000.0
    stage.tick()
    assert len(started) == 1


def test_a_change_that_a_busy_reader_missed_is_sent_as_soon_as_it_reads(stage: Stage) -> None:
    """Not with the next repetition; one that does not read costs no further snapshot."""
    pipe, before = stage.http.stdin, len(stage.http.stdin.lines)
    pipe.waiting = 1
    stage.drain("n1")
    stage.tick()
    for _ in range(3):
        stage.tick(after_s=1.0)
    assert len(pipe.lines) == before
    pipe.waiting = 0
    stage.tick(after_s=1.0)
    (line,) = pipe.lines[before:]
    assert line.startswith(CHANGED_NODES)
    assert b'"bad fan"' in line
