"""A lost node serves again while its job still waits: the recovery goes on with it, and no standby pool takes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World, worlds

from slurm_robust.marks.claim import Claim, render
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.values import expand

JOB = 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A job on all three nodes but one that a person has drained; one of its nodes has died, and Slurm requeued it."""
    with worlds(tmp_path, World) as make:
        made = make("standby: {size: 1, check_max_age_h: 1000}", 4)
        made.slurm.run_job(("n1", "n2", "n3"), comment=render(Claim("watching", "line-1")), time_limit_s=3600)
        set_node(made, "n4", flags=frozenset(("DRAIN",)), reason="fan")
        made.run(30)
        assert not pooled(made)
        set_node(made, "n2", flags=frozenset(("NOT_RESPONDING",)))
        made.run(5)
        assert [row.kind for row in made.journal.incidents()] == ["node_lost"]
        set_node(made, "n2", state="DOWN", reason="Not responding")
        made.slurm.requeue(job(made).ref)
        yield made


def set_node(world: World, name: str, **changes: object) -> None:
    """What Slurm shows of a node from now on."""
    world.slurm.state.nodes[name] = replace(world.slurm.state.nodes[name], **changes)  # type: ignore[arg-type]


def job(world: World) -> Job:
    """The job as it is now."""
    return next(j for i, j in world.slurm.state.jobs.items() if i == max(world.slurm.state.jobs))


def pooled(world: World) -> set[str]:
    """The nodes of standby pools."""
    return {n for r in world.slurm.state.reservations.values() if "standby" in r.name for n in expand(r.nodes)}


@pytest.mark.parametrize("after_s", [1, 3, 9, 40])
def test_a_lost_node_that_serves_again_is_given_to_its_job(world: World, after_s: int) -> None:
    """A person resumes it, or it comes back by itself: nobody calls that a requeue for another reason."""
    world.run(after_s)
    assert job(world).state == "PENDING"
    set_node(world, "n2", state="IDLE", flags=frozenset(), reason="")
    for _ in range(40):
        world.run(1)
        assert not pooled(world)
    assert (job(world).state, job(world).nodes) == ("RUNNING", ("n1", "n2", "n3"))
    assert [row.outcome for row in world.journal.incidents()] == ["running"]


def test_no_pool_takes_a_node_that_a_waiting_job_lacks(world: World) -> None:
    """Also once its recovery was given up: another idle node of its kind is the job's, not the pool's."""
    world.run(400)
    assert [row.outcome for row in world.journal.incidents()] == ["not_started"]
    set_node(world, "n4", flags=frozenset(), reason="")
    world.run(2)
    assert not pooled(world)
    world.run(30)
    assert (job(world).state, job(world).nodes) == ("RUNNING", ("n1", "n3", "n4"))


def test_a_node_that_was_given_back_is_not_shown_as_left_out(world: World) -> None:
    """It has another job, so the recovery is still open: `srobust status` would tell a person to type what is done."""
    world.run(10)
    assert world.daemon.exclusions.shown(job(world)) == {"n2": "out of service"}
    set_node(world, "n2", state="IDLE", flags=frozenset(), reason="")
    waits = max(world.slurm.state.jobs)
    world.slurm.run_job(("n2",), user="ben")
    world.run(10)
    now = world.slurm.state.jobs[waits]
    assert (now.state, now.exclude or "") == ("PENDING", "")
    assert world.daemon.recoveries.of_job(waits) is not None
    assert world.daemon.exclusions.shown(now) == {}
