"""What one user's claims can keep from others: three nodes an hour at most, each for its check and a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_world import World, held, worlds

Make = Callable[..., World]
LIMIT_S = 900.0
"""The default of `quarantine.claim_limit_s`."""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Makes a world that has read everything once."""
    with worlds(tmp_path, World) as make:
        yield lambda nodes: make("standby: {size: 0}", nodes)


def test_a_small_job_that_stays_on_the_suspect_keeps_it_no_longer_than_the_bound(made: Make) -> None:
    """Its owner's other job accuses the node on which it runs: the check never comes about, the node is given back."""
    world = made(6)
    world.slurm.run_job(("n1", "n2"), user="mallory")
    world.slurm.run_job(("n2",), user="mallory")  # one CPU, seven days
    world.run(4)
    world.claim(1, ("n2",))
    world.run(10)
    assert held(world) == {"n2"}
    world.run(LIMIT_S, step_s=2)
    assert held(world) == set()
    assert world.slurm.state.jobs[2].state == "RUNNING"
    assert not world.slurm.state.nodes["n2"].drained


def test_two_jobs_that_accuse_one_node_in_turn_hold_it_for_three_bounds_an_hour_at_most(made: Make) -> None:
    """A new incident each time that the node is free again, for an hour: a user's budget ends it."""
    world = made(12)
    world.slurm.run_job(("n2",), user="mallory")
    number, held_s = 0, 0.0
    for minute in range(60):
        if not held(world):
            number += 1
            job = world.slurm.run_job(("n2",), user="mallory")
            world.run(2)
            world.claim(job.ref.job_id, ("n2",), f"i{number}")
        world.run(60, step_s=10)
        held_s += 60.0 * bool(held(world))
        assert len(held(world)) <= 1, minute
    assert not world.slurm.state.nodes["n2"].drained, "no number of one user's strikes drains a node"
    assert held_s <= 3 * (LIMIT_S + 120)
