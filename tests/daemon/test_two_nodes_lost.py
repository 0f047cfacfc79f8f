"""Two of a job's three nodes are lost at once, and its own claim blames none of them: what they share is at fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World, held, worlds

from slurm_robust.marks.claim import Claim, render
from slurm_robust.slurm.client import Job, Reservation

JOB, DEAD = 2, ("n2", "n3")
STANDBY = "standby: {size: 1, check_max_age_h: 1000}"


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """A job on n1 to n3 of some nodes, the last of which is its standby; n2 and n3 are silent, and the daemon knows."""
    with worlds(tmp_path, World) as make:
        made = make(STANDBY, request.param)
        made.slurm.run_job(("n1", *DEAD), comment=render(Claim("watching", "line-2")), time_limit_s=3600)
        made.run(30)
        nodes = made.slurm.state.nodes
        for name in DEAD:
            nodes[name] = replace(nodes[name], flags=frozenset(("NOT_RESPONDING",)))
        made.run(5)
        assert [row.kind for row in made.journal.incidents()] == ["node_lost"]
        yield made


def claims(world: World) -> None:
    """The job asks without naming a node, and Slurm gives both nodes up."""
    world.claim(JOB, ())
    world.run(2)
    nodes = world.slurm.state.nodes
    for name in DEAD:
        nodes[name] = replace(nodes[name], state="DOWN", reason="Not responding")


def job(world: World) -> Job:
    """The job as it is now."""
    return world.slurm.state.jobs[JOB]


def comes_back(world: World, name: str) -> None:
    """Its slurmd answers again, as with `ReturnToService=2`."""
    nodes = world.slurm.state.nodes
    nodes[name] = replace(nodes[name], state="IDLE", flags=frozenset(), reason="")


@pytest.mark.parametrize("world", [6], indirect=True)
def test_a_claim_that_names_no_node_does_not_lose_the_standby(world: World) -> None:
    """The job runs on its healthy node, the standby node and a free one; nobody is blamed."""
    claims(world)
    world.run(10)
    assert (job(world).state, job(world).nodes) == ("RUNNING", ("n1", "n4", "n6"))
    assert not held(world)
    assert not [act for act in world.slurm.acts if act.startswith("drain")]
    assert [row.outcome for row in world.journal.incidents()] == ["running", "superseded"]


@pytest.mark.parametrize("world", [4], indirect=True)
@pytest.mark.parametrize("after_s", [30, 400, 5 * 3600])
def test_a_job_that_is_short_of_nodes_gets_one_that_comes_back(world: World, after_s: int) -> None:
    """No node is free for it. n2 answers while its seat is held, or long after that was given up: it runs at once.

    Also once the job would have ended, had it run on: the new seat is planned anew.
    """
    claims(world)
    world.run(min(after_s, 400))
    world.slurm.pass_s(max(0, after_s - 400))
    assert job(world).state == "PENDING"
    world.slurm.state.jobs[JOB] = replace(job(world), nodes=("n1", *DEAD))  # as squeue still shows them
    comes_back(world, "n2")
    world.run(30)
    assert (job(world).state, job(world).nodes) == ("RUNNING", ("n1", "n2", "n4"))
    assert world.journal.incidents()[0].outcome == "running"
    assert 3500 < (job(world).time_limit_s or 0) <= 3600
    assert not [name for name in world.slurm.state.reservations if "seat" in name]


@pytest.mark.parametrize("world", [4], indirect=True)
def test_a_lost_node_that_a_person_has_resumed_serves_the_job_again(world: World) -> None:
    """Nobody claims: the daemon's own recovery drains and excludes both nodes, and is given up for want of a node."""
    nodes = world.slurm.state.nodes
    for name in DEAD:
        nodes[name] = replace(nodes[name], state="DOWN", reason="Not responding")
    world.slurm.requeue(job(world).ref)
    world.run(400)
    assert (job(world).state, job(world).exclude) == ("PENDING", "n[2-3]")
    comes_back(world, "n2")
    world.run(30)
    assert (job(world).state, job(world).nodes) == ("RUNNING", ("n1", "n2", "n4"))


@pytest.mark.parametrize("world", [4], indirect=True)
@pytest.mark.parametrize("change", ["held", "larger", "begins later", "a day later", "a maintenance comes"])
def test_a_job_that_its_user_has_changed_gets_no_second_seat(world: World, change: str) -> None:
    """It waits for something else than nodes, or for more than it had; or its recovery is old, or it has no time."""
    claims(world)
    world.run(400)
    later = {"reason": "BeginTime", "start_at_s": int(world.slurm.now_s) + 3600}
    changed: dict[str, dict[str, object]] = {
        "held": {"priority": 0, "reason": "JobHeldUser"},
        "larger": {"num_nodes": 4},
        "begins later": later,
    }
    world.slurm.state.jobs[JOB] = replace(job(world), **changed.get(change, {}))  # type: ignore[arg-type]
    if change == "a day later":
        world.slurm.pass_s(2 * 86400)
    if change == "a maintenance comes":
        at_s = int(world.slurm.now_s) + 1800
        window = Reservation("window", "n[1-4]", ("root",), frozenset(("MAINT",)), at_s, at_s + 3600, "INACTIVE")
        world.slurm.state.reservations["window"] = window
    acts = len(world.slurm.acts)
    comes_back(world, "n2")
    world.run(30)
    assert not [act for act in world.slurm.acts[acts:] if "seat" in act]
