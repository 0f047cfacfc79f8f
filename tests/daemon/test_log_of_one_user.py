"""What one user's jobs make the daemon say takes nobody else's lines out of the log, nor out of the events table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A site of sixty nodes."""
    made = World(tmp_path, FakeSlurm(60), parse("standby: {size: 0}"))
    yield made
    made.journal.close()


def events(world: World, what: str, words: str) -> int:
    """How many events of this kind have these words."""
    query = "SELECT count(*) FROM events WHERE what LIKE ? AND text LIKE ?"
    return int(world.journal.db.execute(query, (what, f"%{words}%")).fetchone()[0])


def test_forty_jobs_that_write_nonsense_hide_no_action_for_another_user(world: World) -> None:
    """Each of Mallory's jobs changes its claim twice a second; Ann's job is recovered, and each action is told."""
    for number in range(1, 41):
        world.slurm.run_job((f"n{number}",), user="mallory")
    world.slurm.run_job(("n50", "n51"), user="ann")
    world.run(6)
    for turn in range(20):
        for number in range(1, 41):
            noise = f"[[srobust:1 {{nonsense {turn}}}]]"
            world.slurm.state.jobs[number] = replace(world.slurm.state.jobs[number], comment=noise)
        world.run(1)
    world.claim(41, ("n51",))
    world.run(20)
    assert world.slurm.state.jobs[41].restart_count == 1
    for action in ("quarantine", "create_seat", "answer", "requeue", "point_job_at_seat", "leave_seat", "delete_seat"):
        assert events(world, f"action.{action}", ""), action
    assert 0 < events(world, "claim.malformed", "of mallory") <= 40, "a user has a budget, too"
    assert events(world, "claim.malformed", "left out"), "that lines are missing is said"


def test_a_malformed_claim_of_another_user_is_told_all_the_same(world: World) -> None:
    """Budgets are each user's own."""
    for number in range(1, 41):
        world.slurm.run_job((f"n{number}",), user="mallory")
    world.slurm.run_job(("n50",), user="ann")
    world.run(6)
    for turn in range(4):
        for number in range(1, 42 if turn == 3 else 41):
            noise = f"[[srobust:1 {{nonsense {turn}}}]]"
            world.slurm.state.jobs[number] = replace(world.slurm.state.jobs[number], comment=noise)
        world.run(4)
    assert events(world, "claim.malformed", "of ann") == 1
