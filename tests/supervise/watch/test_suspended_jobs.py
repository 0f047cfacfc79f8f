"""A job is suspended (`scontrol suspend`): its supervisor and agents are stopped with it, and the clocks go on."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from handler_parts import Parts
from supervised import WAITS, World

from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.reported.suspicion import SilenceLevel


class Suspended:
    """A training with steps of 20 s, which is suspended 5 s after its last step."""

    def __init__(self, folder: Path) -> None:
        self.parts = Parts(World(folder, command="python train.py"))
        self.world = self.parts.world
        self.world.finds_ranks()
        for step in range(20):
            self.world.clock.at_s += 20.0
            self.world.steps(step)
            self.polls()
        self.passes(5.0)

    def polls(self) -> None:
        """The supervisor polls."""
        asyncio.run(self.parts.observer.poll(self.parts.attempt))

    def passes(self, seconds: float) -> None:
        """Time passes, and the job runs."""
        self.world.clock.at_s += seconds
        self.polls()

    def stops(self, seconds: float, late: float = 0.0) -> None:
        """The job is suspended for so long. Of its messages, the first are taken before the supervisor's next poll."""
        self.world.clock.at_s += seconds
        self.world.clock.stopped_s += seconds
        self.says(19, age_s=late)
        self.polls()

    def says(self, step: int, age_s: float) -> None:
        """An agent reports a step, with an age on its machine's monotonic clock."""
        if age_s:
            entry = [0, step, "train", age_s, step + 1, None, None, None]
            self.world.session.receive(from_agent({"t": "p", "n": "n1", "r": [entry]}))

    @property
    def silent_s(self) -> float:
        """For how long the job counts as silent."""
        return self.world.clock.at_s - self.parts.attempt.last_sign_s


@pytest.mark.parametrize("late", [0.0, 3604.0])
def test_the_time_of_a_suspension_is_no_silence(tmp_path: Path, late: float) -> None:
    """The step is as old as before; also where an agent tells it only now, with its age."""
    job = Suspended(tmp_path)
    job.stops(3600.0, late)
    assert job.silent_s == pytest.approx(5.0, abs=1.1)
    assert job.parts.attempt.assess(job.world.session.settings).level is SilenceLevel.QUIET
    assert "stopped for 3600 s" in job.world.text("note")


def test_a_sign_that_an_agent_tells_after_the_first_poll_is_no_older(tmp_path: Path) -> None:
    """It read the rank's page just before it was stopped."""
    job = Suspended(tmp_path)
    job.stops(3600.0)
    job.says(20, age_s=3601.0)
    job.says(20, age_s=3601.0)
    assert job.silent_s <= 5.0


def test_nothing_is_learnt_from_a_suspension(tmp_path: Path) -> None:
    """Neither a healthy pause nor a long step; the agents, stopped too, are not silent."""
    job = Suspended(tmp_path)
    limit_s = job.parts.attempt.own_limit_s(job.world.session.settings)
    heard = dict.fromkeys(("n1", "n2"), job.world.clock.at_s)
    job.parts.attempt.fleet.heard_at_s.update(heard)
    job.stops(600.0)
    assert set(job.parts.attempt.fleet.heard_at_s.values()) == {job.world.clock.at_s}
    job.passes(15.0)
    job.world.steps(20)
    job.polls()
    assert job.parts.attempt.pauses.longest_s["train"] == pytest.approx(20.0)
    assert job.parts.attempt.own_limit_s(job.world.session.settings) == limit_s


def test_a_hang_after_a_suspension_is_as_silent_as_ever(tmp_path: Path) -> None:
    """Only the time of the suspension is left out."""
    job = Suspended(tmp_path)
    job.stops(3600.0)
    job.passes(60.0)
    assert job.silent_s == pytest.approx(65.0)
    assert job.parts.attempt.assess(job.world.session.settings).level is SilenceLevel.SUSPECT


def test_captures_before_and_after_a_suspension_show_no_long_stillness(tmp_path: Path) -> None:
    """What stood still for an hour because the job was suspended has not stood still by itself."""
    job = Suspended(tmp_path)
    job.world.agents.stacks = WAITS
    found = Investigation(job.world.session, job.parts.attempt)
    asyncio.run(found.capture(keep=False))
    job.stops(3600.0)
    job.passes(4.0)
    asyncio.run(found.capture(keep=False))
    first, last = found.captures
    assert last.at_s - first.at_s == pytest.approx(4.0)


def test_log_lines_are_no_older_either(tmp_path: Path) -> None:
    """A job that prints its steps, each 20 s."""
    log = tmp_path / "slurm-5.out"
    log.write_text("")
    world = World(tmp_path / "story")
    attempt, parts = world.attempt(paths=(log,)), Parts(world)
    settings = world.session.settings
    for step in range(40):
        world.clock.at_s += 20.0
        if step == 30:
            world.clock.at_s += 3600.0
            world.clock.stopped_s += 3600.0
            asyncio.run(parts.observer.poll(attempt))
            assert attempt.assess(settings).level is SilenceLevel.QUIET
        with log.open("a") as lines:
            lines.write(f"step {step}/500 loss 1.0\n")
        asyncio.run(parts.observer.poll(attempt))
    assert attempt.own_limit_s(settings) == pytest.approx(62.0)
    assert attempt.pauses.longest_s["train"] == pytest.approx(20.0, abs=1.0)
