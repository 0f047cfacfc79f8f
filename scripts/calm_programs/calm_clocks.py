"""Programs that replace clocks, or run on a machine whose clock is wrong."""

from __future__ import annotations

import time

from calm_kit import RANK, amid_training, by_sockets, compute, nap, program


def _progress_steps(count: int, first: int = 0) -> None:
    from slurm_robust import progress

    meet = by_sockets()
    for number in range(first, first + count):
        compute(0.4)
        meet()
        progress.step(number)
        if RANK == 0 and number == first + count // 2:
            nap(20)


@program(20)
def frozen_time() -> None:
    """time.time is replaced by a constant, as freezegun does, and progress.step is called all the time."""
    time.time = lambda: 1_000_000_000.0
    _progress_steps(60)


@program(20)
def forty_minutes_behind() -> None:
    """The clock of one rank's node is 40 minutes behind (time.time is replaced in it)."""
    true_time = time.time
    time.time = lambda: true_time() - 2400 * (RANK == 1)
    _progress_steps(60)


@program(20)
def an_hour_ahead() -> None:
    """The clock of one rank's node is an hour ahead."""
    true_time = time.time
    time.time = lambda: true_time() + 3600 * (RANK == 1)
    _progress_steps(60)


@program(20)
def clock_steps() -> None:
    """The clock jumps by hours, forth and back, every few seconds."""
    true_time, begun_s = time.time, time.monotonic()
    time.time = lambda: true_time() + 7200 * (int(time.monotonic() - begun_s) % 4 - 2)
    _progress_steps(60)


@program(45)
def simulated_clock() -> None:
    """A simulator: time.time and time.monotonic count its own steps, and it pauses for 45 s."""
    from types import SimpleNamespace

    world = SimpleNamespace(now_s=0.0)

    def advance() -> float:
        world.now_s += 0.001
        return world.now_s

    def odd() -> None:
        nap(45)
        time.time = advance

    amid_training(odd)


@program(45)
def other_time_zone() -> None:
    """The program sets another time zone and prints log lines with its times, one of them long after the others."""
    import os

    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()
    amid_training(lambda: nap(45))
