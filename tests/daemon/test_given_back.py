"""A job's exclusions that are ours end when their reason does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from test_loop import World

from slurm_robust.config import Config
from slurm_robust.slurm.values import expand


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Four nodes; job 1 has three of them."""
    made = World(tmp_path, FakeSlurm(4), Config())
    made.slurm.run_job(("n1", "n2", "n3"))
    made.run(6)
    yield made
    made.journal.close()


def excluded(world: World) -> set[str]:
    """What job 1 leaves out."""
    return set(expand(world.slurm.state.jobs[1].exclude or ""))


def test_second_recovery_gives_back_what_the_first_left_out(world: World) -> None:
    """n3 passed its recheck: the second recovery does not take it for the user's own, and may use it again."""
    world.claim(1, ("n3",))
    world.run(60)
    assert excluded(world) == {"n3"}
    world.claim(1, ("n2",), incident="i2")
    world.run(60)
    job = world.slurm.state.jobs[1]
    assert (job.state, set(job.nodes), job.restart_count) == ("RUNNING", {"n1", "n3", "n4"}, 2)
    assert excluded(world) == {"n2"}
