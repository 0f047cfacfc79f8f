"""A maintenance of all nodes that is announced weeks ahead keeps no job from its seat that ends long before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World, worlds

from slurm_robust.core.model import JobRef
from slurm_robust.marks.claim import Claim, render
from slurm_robust.slurm.client import Job, Reservation

DAY_S = 86400
NO_QUARANTINE = "standby: {size: 0}\nquarantine: {max_per_user_hour: 0}"


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Ann's job may run for a day on n1 and n2, and all of some nodes are reserved in two weeks."""
    text, nodes = request.param
    with worlds(tmp_path, World) as make:
        made = make(text, nodes)
        slurm, starts, at_s = made.slurm, made.slurm._try_start, int(made.slurm.now_s) + 14 * DAY_S
        flags, names = frozenset(("MAINT", "IGNORE_JOBS")), f"n[1-{nodes}]"
        window = Reservation("window", names, ("root",), flags, at_s, at_s + DAY_S, "INACTIVE")
        slurm.state.reservations["window"] = window

        def started(job: Job) -> None:
            """Start it as Slurm does: the window keeps out no job that ends before it."""
            announced = slurm.state.reservations.pop("window")
            starts(job)
            slurm.state.reservations["window"] = announced

        slurm._try_start = started  # type: ignore[method-assign]
        slurm.run_job(("n1", "n2"), time_limit_s=DAY_S, comment=render(Claim("watching", "line-1")))
        yield made


@pytest.mark.parametrize("world", [(NO_QUARANTINE, 3)], indirect=True)
@pytest.mark.parametrize("free", ["its suspect", "another node"])
def test_a_node_that_becomes_free_completes_the_seat(world: World, free: str) -> None:
    """No node is free at first: its suspect may be used again, or n3 takes its place."""
    slurm = world.slurm
    bens = slurm.run_job(("n3",), user="ben")
    world.run(4)
    world.claim(1, ("n2",))
    if free == "another node":
        world.run(0.5)
        slurm.state.nodes["n2"] = replace(slurm.state.nodes["n2"], state="DOWN")
        slurm._end(bens, "COMPLETED")
    world.run(12)
    job = slurm.state.jobs[1]
    assert (job.state, job.restart_count) == ("RUNNING", 1)
    assert world.outcomes() == ["running"]


@pytest.mark.parametrize("world", [("standby: {size: 0}", 4)], indirect=True)
def test_a_late_claim_keeps_its_survivor(world: World) -> None:
    """Its node is no less free for the job than before; and n3 takes its suspect's place."""
    slurm, ref = world.slurm, JobRef(1)
    world.run(6)
    world.claim(1, ("n1",), conclusion="culprit", grade="strong")
    slurm.requeue(ref)
    slurm.pass_s(1)
    slurm.update_job(ref, exclude="n1")
    world.live()
    world.run(12)
    (row,) = world.journal.incidents()
    assert row.recovery is not None
    assert (row.recovery.kept, row.recovery.standby) == (("n2",), ("n3",))


@pytest.mark.parametrize("world", [(NO_QUARANTINE, 3)], indirect=True)
def test_a_node_that_is_reserved_before_the_jobs_end_is_not_taken(world: World) -> None:
    """The job may run for three weeks: n3 is needed by then."""
    slurm = world.slurm
    slurm.state.jobs[1] = replace(slurm.state.jobs[1], time_limit_s=21 * DAY_S)
    slurm.state.reservations["window"] = replace(slurm.state.reservations["window"], nodes="n3")
    world.run(4)
    world.claim(1, ("n2",))
    world.run(0.5)
    (row,) = world.journal.incidents()
    assert row.recovery is not None
    assert row.recovery.seat_nodes == ("n1",)


@pytest.mark.parametrize("world", [("standby: {size: 2}", 6)], indirect=True)
@pytest.mark.parametrize(("in_s", "pool"), [(DAY_S, "n[4-5]"), (1800, "n5")])
def test_a_pool_is_refilled_until_shortly_before_a_maintenance(world: World, in_s: int, pool: str) -> None:
    """One of its members goes down."""
    state = world.slurm.state
    window = state.reservations["window"]
    state.reservations["window"] = replace(window, start_at_s=int(world.slurm.now_s) + in_s)
    world.run(30)
    state.nodes["n6"] = replace(state.nodes["n6"], state="DOWN")
    world.run(30)
    assert [r.nodes for name, r in state.reservations.items() if "standby" in name] == [pool]
