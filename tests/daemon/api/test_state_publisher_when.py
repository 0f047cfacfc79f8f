"""When the daemon's state is published: where something in it has changed, and every few seconds in any case."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import parse
from slurm_robust.daemon.api.state_lines import encode
from slurm_robust.daemon.api.state_publisher import REPEAT_S, StatePublisher
from slurm_robust.daemon.api.state_snapshot import FILE_NAME, Snapshots


class Stage:
    """A daemon that publishes into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = World(folder / "journal", FakeSlurm(), parse("daemon: {http: {enabled: false}}"))
        daemon = self.world.daemon
        self.snapshots = Snapshots(daemon)
        self.publisher = StatePublisher(daemon.context, folder, self.snapshots)
        self.run(20)

    def run(self, seconds: int) -> int:
        """Let time pass, a poll a second; returns how often something was published."""
        times = set[float]()
        for _ in range(seconds):
            self.world.run(1, step_s=1.0)
            asyncio.run(self.publisher.tick())
            times.add(self.state["at_s"])
        return len(times) - 1

    @property
    def state(self) -> dict[str, object]:
        """What was published last."""
        found: dict[str, object] = json.loads((self.folder / FILE_NAME).read_text())
        return found


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """One that has published."""
    made = Stage(tmp_path)
    yield made
    made.world.journal.close()


def test_a_state_that_does_not_change_is_published_every_few_seconds(stage: Stage) -> None:
    """Its age says that the daemon lives; permits are renewed in between."""
    assert 60 / REPEAT_S - 1 <= stage.run(60) <= 60 / REPEAT_S + 4


@pytest.mark.parametrize("what", ["node", "job", "reservation", "journal", "trouble"])
def test_a_change_is_published_at_once(stage: Stage, what: str) -> None:
    """Whatever it is that has changed: at the poll that saw it."""
    slurm, context = stage.world.slurm, stage.world.daemon.context
    if what == "node":
        slurm.state.nodes["n1"] = replace(slurm.state.nodes["n1"], flags=frozenset(("DRAIN",)), reason="bad fan")
    elif what == "job":
        slurm.run_job(("n1",))
    elif what == "reservation":
        slurm.create_reservation("srobust-standby-x", "n1", ("root",), 10, ())
    elif what == "journal":
        context.journal.put("breaker_open", "too many")
    else:
        context.trouble("x", "the disk is full")
    before = context.readings
    seen = (before.picture, before.jobs, before.reservations)
    for _ in range(8):
        asyncio.run(stage.world.look())
        if (before.picture, before.jobs, before.reservations) != seen or what in ("journal", "trouble"):
            break
        stage.world.slurm.pass_s(1.0)
    stage.world.slurm.pass_s(1.0)
    asyncio.run(stage.publisher.tick())
    assert stage.state["at_s"] == round(context.now_s(), 3)


def test_rows_that_are_taken_over_are_those_that_would_be_made(stage: Stage) -> None:
    """A snapshot with a memory is the snapshot without one."""
    slurm = stage.world.slurm
    slurm.run_job(("n1", "n2"))
    slurm.state.nodes["n3"] = replace(slurm.state.nodes["n3"], flags=frozenset(("DRAIN",)), reason="bad fan")
    stage.run(8)
    daemon = stage.world.daemon
    assert json.loads(stage.snapshots.take().whole()) == published(daemon)
    del slurm.state.nodes["n6"]
    daemon.context.readings.expire()
    stage.run(8)
    assert json.loads(stage.snapshots.take().whole()) == published(daemon)


def test_half_a_character_from_outside_is_no_trouble() -> None:
    """JSON can carry it as an escape; the state then does, too."""
    assert json.loads(encode({"reason": "\ud800"})) == {"reason": "\ud800"}
    assert encode({"reason": "日本"}).decode() == '{"reason":"日本"}'
