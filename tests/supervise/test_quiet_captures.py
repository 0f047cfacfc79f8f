"""Quiet looks, without a cluster."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_robust.config import Config
from slurm_robust.localize.evidence import Capture
from slurm_robust.model import Conclusion, Verdict
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.watch.attempt_state import Present
from slurm_robust.supervise.watch.quiet_captures import Looks


def scene(tmp_path: Path, *, silent: tuple[str, ...] = ()) -> tuple[Any, Looks]:
    """An attempt that was launched ten minutes ago, and of which no rank was ever seen."""
    present = Present("5.0.1.1", ("n1", "n2"), job_id=5, layout={}, paths=(), log_pattern="")
    present.began_at_s = time.time() - 600
    supervisor: Any = SimpleNamespace(
        present=present,
        config=Config(),
        folder=Folder(tmp_path, quiet=True),
        context=SimpleNamespace(ref=SimpleNamespace(job_id=5)),
        silent_nodes=list(silent),
        ended=None,
    )
    return supervisor, Looks(supervisor, present.began_at_s)


def told(tmp_path: Path) -> str:
    """The story so far."""
    story = tmp_path / "story.jsonl"
    return story.read_text() if story.exists() else ""


def test_a_step_that_never_gets_a_rank_is_said_once(tmp_path: Path) -> None:
    """It may wait for another step, or for an image: nothing is done, and the log says where to look."""
    _, looks = scene(tmp_path)
    for _ in range(3):
        assert asyncio.run(looks.due()) is None
    assert told(tmp_path).count("no rank has been seen in 10 min") == 1
    assert "squeue --steps --jobs 5" in told(tmp_path)


def test_nodes_without_an_agent_are_named_beside_it(tmp_path: Path) -> None:
    """Then it is no waiting step: the nodes themselves do not answer."""
    _, looks = scene(tmp_path, silent=("n2",))
    asyncio.run(looks.due())
    assert "no agent answers on n2" in told(tmp_path)


def test_a_step_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    """Its exit is another matter."""
    supervisor, looks = scene(tmp_path)
    supervisor.ended = 1
    asyncio.run(looks.due())
    assert told(tmp_path) == ""


HANG = Verdict(Conclusion.CULPRIT, "rank 1 on n2 is stopped", corroborated=True)
UNSURE = Verdict(Conclusion.CULPRIT, "rank 1 on n2 may hang")
NOTHING = Verdict(Conclusion.UNDETERMINED, "nothing is known")


class Inquiry:
    """Captures that cost nothing, and show what the test says."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.captures: list[Capture] = []
        self.rounds = 0

    async def capture(self, *, keep: bool = True) -> None:
        """One more."""
        self.rounds += 1
        self.world.looked.append(self.world.clock)
        self.captures.append(Capture(self.world.clock, ()))

    def judge(self) -> Verdict:
        """A hang is proven by two captures."""
        verdict = self.world.shows
        return UNSURE if verdict is HANG and len(self.captures) < 2 else verdict

    def take_over(self, earlier: Inquiry) -> None:
        """As it was."""
        self.captures = list(earlier.captures)


class World:
    """A job of two ranks, looked at each half second of a clock of its own."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 1000.0
        monkeypatch.setattr("time.time", lambda: self.clock)
        self.shows = NOTHING
        self.looked: list[float] = []
        self.acted: list[float] = []
        self.present = Present("5.0.1.1", ("n1", "n2"), job_id=5, layout={}, paths=(), log_pattern="")
        for rank in (0, 1):
            found = {"t": "rank", "n": f"n{rank + 1}", "rank": rank, "pid": 100 + rank, "step_id": "0", "world": 2}
            self.present.fleet.feed({**found, "at": 1000.0}, 1000.0)
        record = SimpleNamespace(id="i", signals=[])
        supervisor: Any = SimpleNamespace(
            present=self.present,
            config=Config(),
            folder=Folder(tmp_path, quiet=True),
            book=SimpleNamespace(open=lambda _: record),
            handling=SimpleNamespace(investigator=lambda _: Inquiry(self), proven=self._proven),
            ended=None,
        )
        self.looks = Looks(supervisor, self.clock)

    async def _proven(self, *_: Any, **__: Any) -> None:
        self.acted.append(self.clock)
        self.present.quiet_until_s = self.clock + 1800  # as in observe mode

    def says(self, step: int, phase: str = "train", rank: int = 0) -> None:
        """A rank's own word."""
        entry = [rank, step, phase, self.clock, 1, None, None, None]
        self.present.fleet.feed({"t": "p", "n": "n1", "r": [entry]}, self.clock)

    def stops(self, pid: int = 101) -> None:
        """The agent of n2 finds a process of rank 1 stopped."""
        self.present.fleet.feed({"t": "state", "n": "n2", "rank": 1, "s": "T", "pid": pid}, self.clock)

    def passes(self, seconds: float) -> None:
        """Time passes."""
        until = self.clock + seconds
        while self.clock < until:
            self.clock += 0.5
            asyncio.run(self.looks.due())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A job that has just been launched."""
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize("phase", ["startup", "train", "checkpoint"])
def test_a_stopped_process_is_acted_on_in_the_first_steps(world: World, phase: str) -> None:
    """It proves a hang by itself: two looks, four seconds apart, and no hour of `startup_limit_s`."""
    world.says(-1 if phase == "startup" else 2, phase)
    world.shows = HANG
    world.passes(1)
    world.stops()
    world.passes(20)
    assert len(world.acted) == 1
    assert world.acted[0] - 1000.0 < 12


def test_a_stopped_process_in_an_announced_pause_counts_after_the_jobs_own_limit(world: World) -> None:
    """Its p99 is known, and is no measure of the pause; a stopped process is no pause."""
    for step in range(10):
        world.clock += 4.0
        world.says(step)
    world.says(9, "evaluate")
    began, world.shows = world.clock, HANG
    world.stops()
    world.passes(60)
    assert len(world.acted) == 1
    assert 14.0 <= world.acted[0] - began < 25.0, "3 × 4 s + 2 s, and two looks"


def test_a_stopped_process_that_holds_nobody_up_is_left_alone(world: World) -> None:
    """Training goes on beside it; and a stopped helper is not the rank itself."""
    world.shows = HANG
    world.stops()
    for step in range(4):
        world.says(step)
        world.passes(3)
    assert world.looked == []
    world.stops(pid=4711)
    world.passes(60)
    assert world.looked == []


def test_a_hang_at_the_second_step_is_looked_at_after_the_time_for_unreported_ones(world: World) -> None:
    """120 s by default; again a minute later where somebody is suspected, and no action before it is proven."""
    world.passes(5)
    world.says(2)
    world.shows = HANG
    world.passes(300)
    assert [round(at - 1005.0) for at in world.looked[:2]] == [120, 180]
    assert [round(at - 1005.0) for at in world.acted] == [180]
    assert len(world.looked) == 3, "what was seen is said once"


def test_captures_from_before_a_step_prove_nothing(world: World) -> None:
    """Steps of three minutes: each look stands for itself, and nothing is done."""
    world.shows = HANG
    for step in range(4):
        world.says(step)
        world.passes(179)
    assert len(world.looked) == 4
    assert world.acted == []


def test_a_job_that_knows_its_own_step_times_is_not_looked_at(world: World) -> None:
    """Its silence is measured by them."""
    for step in range(10):
        world.clock += 4.0
        world.says(step)
    world.shows = HANG
    world.passes(600)
    assert world.looked == []


def test_what_a_debugger_holds_is_not_looked_at_for_ever(world: World) -> None:
    """Agents cannot tell it from a stop; stacks can. After some looks it is left to the usual pace."""
    world.says(2)
    world.stops()
    world.passes(100)
    assert len(world.looked) == 4


def test_a_job_without_any_progress_is_looked_at_as_before(world: World) -> None:
    """Every two minutes; acted on when proven."""
    world.passes(600)
    assert [round(at - 1000.0) for at in world.looked] == [120, 240, 360, 480, 600]
    world.shows = HANG
    world.passes(120)
    assert len(world.acted) == 1


def test_a_stop_is_looked_at_at_once_in_a_job_without_any_progress(world: World) -> None:
    """However often it was looked at before."""
    world.passes(900)
    world.shows = HANG
    world.stops()
    world.passes(10)
    assert len(world.acted) == 1
