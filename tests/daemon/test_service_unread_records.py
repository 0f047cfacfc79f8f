"""A record of Slurm's that cannot be read is told of, and keeps the daemon from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config
from slurm_robust.slurm import values


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Eight nodes; jobs 1 and 2 run on two each."""
    made = World(tmp_path, FakeSlurm(8), Config())
    made.slurm.run_job(("n1", "n2"))
    made.slurm.run_job(("n3", "n4"))
    made.run(6)
    yield made
    made.journal.close()


def test_a_person_is_told_of_what_cannot_be_read_while_the_daemon_works(world: World) -> None:
    """In `srobust status` and once in the log; another job's claim is answered; it ends when the record is gone."""
    world.slurm.unread = {"jobs": ["job 9: not a time: soon"]}
    world.claim(2, ("n4",))
    world.run(30)
    assert world.slurm.state.jobs[2].restart_count == 1
    (sentence,) = world.daemon.context.troubles.values()
    assert "job 9: not a time: soon" in sentence
    told = world.journal.db.execute("SELECT text FROM events WHERE what = 'slurm.unread'").fetchall()
    assert len(told) == 1
    world.slurm.unread = {}
    world.run(6)
    assert not world.daemon.context.troubles


def test_a_thousand_unreadable_jobs_leave_the_log_to_others(world: World) -> None:
    """Also where each reading has new ones: a few lines a minute, their count, and a claim's lines are all there."""
    for n in range(20):
        world.slurm.unread = {"jobs": [f"job {job}: not a time: soon" for job in range(1000 * n, 1000 * n + 1000)]}
        world.run(3)
    text = "SELECT text FROM events WHERE what = 'slurm.unread'"
    told = [row[0] for row in world.journal.db.execute(text).fetchall()]
    assert 5 <= len(told) <= 15
    assert "1000 new ones" in told[0]
    (sentence,) = world.daemon.context.troubles.values()
    assert sentence.startswith("1000 of Slurm's jobs")


def test_a_job_that_begins_at_the_end_of_time_changes_nothing_for_others(world: World) -> None:
    """Its times go through the daemon's arithmetic, journal and state."""
    job = replace(world.slurm.state.jobs[1], state="PENDING", nodes=(), start_at_s=values.MAX_TIME_S)
    world.slurm.state.jobs[1] = replace(job, eligible_at_s=values.MAX_TIME_S, time_limit_s=values.MAX_TIME_S)
    world.claim(2, ("n4",))
    world.run(30)
    assert world.slurm.state.jobs[2].restart_count == 1
    assert not world.daemon.context.troubles
