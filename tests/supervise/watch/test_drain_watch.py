"""When are the nodes read, and what where Slurm is slow or does not answer?"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

from supervised import World

from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.watch.drain_watch import EVERY_S, DrainWatch


def readings(folder: Path, *, takes_s: float = 0.0, fails: bool = False) -> list[float]:
    """The times of all readings within an hour, where each takes so long."""
    world = World(folder, command="python train.py")
    began_s, times, nodes = world.clock.at_s, [], world.slurm.nodes()

    def read() -> list[Node]:
        times.append(world.clock.at_s - began_s)
        world.clock.at_s += takes_s
        if fails:
            raise SlurmError("slurmctld does not answer")
        return nodes

    world.slurm.nodes = read  # type: ignore[method-assign]

    async def hour() -> None:
        watch, attempt = DrainWatch(world.session), world.attempt()
        while world.clock.at_s < began_s + 3600:
            await watch.poll(attempt)
            world.clock.at_s += 1
            await asyncio.sleep(0)

    asyncio.run(hour())
    return times


def test_once_a_minute_also_where_nobody_answers(tmp_path: Path) -> None:
    """Between 58 and 60 times an hour."""
    for fails in (False, True):
        times = readings(tmp_path / str(fails), fails=fails)
        assert times[0] <= EVERY_S
        assert 57 <= len(times) <= 60


def test_a_slow_slurmctld_is_asked_less_often(tmp_path: Path) -> None:
    """200 times as long as a reading takes, ten minutes at most."""
    times = readings(tmp_path / "slow", takes_s=1.0)
    assert {round(later - earlier) for earlier, later in pairwise(times)} <= {201, 202}
    times = readings(tmp_path / "stuck", takes_s=20.0)
    assert {round(later - earlier) for earlier, later in pairwise(times)} <= {620, 621}
