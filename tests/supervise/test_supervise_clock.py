"""The supervisor's time, when somebody sets its machine's clock."""

from __future__ import annotations

import asyncio

import pytest

from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.clock import Clock


class Machine:
    """A machine whose time of day can be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.since_start_s, self.time_of_day_s = 50.0, 1_000_000.0
        monkeypatch.setattr(SystemClock, "now_s", lambda _: self.time_of_day_s)
        monkeypatch.setattr(SystemClock, "monotonic_s", lambda _: self.since_start_s)

    def passes(self, seconds: float) -> None:
        """Time passes."""
        self.since_start_s += seconds
        self.time_of_day_s += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One whose clock is right."""
    return Machine(monkeypatch)


def test_time_passes_as_on_the_machine(machine: Machine) -> None:
    """The time of day, where nobody sets it."""
    clock = Clock()
    assert clock.now_s() == 1_000_000.0
    machine.passes(3600.0)
    assert clock.now_s() == 1_003_600.0


@pytest.mark.parametrize("jump_s", [2400.0, -2400.0])
def test_a_clock_that_is_set_makes_nothing_older(machine: Machine, jump_s: float) -> None:
    """Ages are wrong by a tenth at most, and within hours the time is the machine's again."""
    clock = Clock()
    began_s = clock.now_s()
    machine.passes(10.0)
    machine.time_of_day_s += jump_s
    assert clock.now_s() - began_s == pytest.approx(10.0, abs=1.0)
    machine.passes(100.0)
    assert clock.now_s() - began_s == pytest.approx(110.0, abs=11.0)
    machine.passes(24_000.0)
    assert clock.now_s() == pytest.approx(machine.time_of_day_s)


class Sleeping:
    """Tasks that sleep on a machine where something happens meanwhile."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = machine
        self.clock = Clock()
        self.late_s = self.worked_s = 0.0
        monkeypatch.setattr(SystemClock, "worked_s", lambda _: self.worked_s)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        """The sleep ends late."""
        self.machine.passes(seconds + self.late_s)
        self.late_s = 0.0


def test_a_process_that_was_stopped_itself_knows_for_how_long(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scontrol suspend` stops the supervisor for an hour, and the clocks go on."""
    sleeping = Sleeping(machine, monkeypatch)
    sleeping.late_s = 3600.0
    for _ in range(5):
        asyncio.run(sleeping.clock.sleep(0.2))
    assert sleeping.clock.stopped_s == pytest.approx(3600.0)


@pytest.mark.parametrize(("late_s", "worked_s"), [(9.0, 0.0), (60.0, 7.0)])
def test_a_busy_machine_stops_nobody(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, late_s: float, worked_s: float
) -> None:
    """A sleep ends some seconds late, or later because we work ourselves."""
    sleeping = Sleeping(machine, monkeypatch)
    sleeping.late_s = late_s

    async def sleep(seconds: float) -> None:
        sleeping.worked_s += worked_s
        sleeping.machine.passes(seconds + sleeping.late_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(sleeping.clock.sleep(0.2))
    assert sleeping.clock.stopped_s == 0.0
