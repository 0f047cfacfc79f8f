"""The supervisor's time, when somebody sets its machine's clock."""

from __future__ import annotations

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
