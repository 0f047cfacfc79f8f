"""A seat that is closed because its job needs other nodes: who came through it is seen, however soon it is closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World, worlds

from slurm_robust.core.model import JobRef
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.values import expand

SEAT = "srobust-seat-1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Ann's job has n1 and needs one of n3 to n6, which have just become free; she lets it wait for another job."""
    with worlds(tmp_path, World) as make:
        made = make("quarantine: {max_per_user_hour: 0}", 6)
        starts = made.slurm._try_start
        made.slurm.run_job(("n1", "n2"))
        others = [made.slurm.run_job((name,), user="ben") for name in ("n3", "n4", "n5", "n6")]
        made.run(4)
        made.slurm._try_start = lambda job: None if job.ref.job_id == 1 else starts(job)  # type: ignore[method-assign]
        made.claim(1, ("n2",))
        made.run(0.5)
        nodes = made.slurm.state.nodes
        nodes["n2"] = replace(nodes["n2"], state="DOWN")
        made.run(1)
        for job in others:
            made.slurm._end(job, "COMPLETED")
        yield made


def comes(world: World, node: str) -> bool:
    """Ann's next job starts there through the seat, and leaves it at once; False if Slurm refuses it."""
    slurm, number = world.slurm, len(world.slurm.state.jobs) + 1
    job = Job(JobRef(number), "PENDING", "ann", 1000, "main", num_nodes=1, reservation=SEAT, req_nodes=node)
    slurm.state.jobs[number] = job
    slurm._try_start(job)
    if slurm.state.jobs[number].state != "RUNNING":
        del slurm.state.jobs[number]
        return False
    slurm.update_job(job.ref, reservation="")
    return True


def extra_in_open_seat(world: World) -> list[str]:
    """Nodes of the open seat that Ann's job did not have."""
    seat = world.slurm.state.reservations.get(SEAT)
    return sorted({*expand(seat.nodes)} - {"n1"}) if seat is not None and seat.users == ("ann",) else []


@pytest.mark.parametrize("closes", ["smaller", "held"])
def test_a_job_that_came_through_a_seat_is_seen_though_the_seat_is_closed_at_once(world: World, closes: str) -> None:
    """Ann makes the waiting job smaller as soon as her other one has started, and larger again; or she holds it."""
    jobs, there = world.slurm.state.jobs, list[str]()
    for _ in range(300):
        world.run(0.1, 0.1)
        extra = extra_in_open_seat(world)
        if extra and jobs[1].num_nodes == 2 and world.slurm.now_s > world.slurm.state.reservations[SEAT].start_at_s + 1:
            if comes(world, extra[0]):
                there.append(extra[0])
                changes = {"num_nodes": 1} if closes == "smaller" else {"reason": "JobHeldUser", "priority": 0}
                jobs[1] = replace(jobs[1], **changes)  # type: ignore[arg-type]
        elif jobs[1].num_nodes == 1:
            jobs[1] = replace(jobs[1], num_nodes=2)
    assert there == ["n3"]
    told = world.journal.db.execute("SELECT text FROM events WHERE what = 'seat.entered'").fetchall()
    assert len(told) == 1
    assert world.outcomes() == ["aborted"]
    assert SEAT not in world.slurm.state.reservations


def test_a_job_that_slurm_starts_where_the_seat_was_is_no_intruder(world: World) -> None:
    """Ann's next job waits in the queue, and gets a node in the moment between the seat that goes and the next one."""
    slurm, jobs, delete = world.slurm, world.slurm.state.jobs, world.slurm.delete_reservation
    small: list[Job] = []

    def deleted(name: str) -> None:
        delete(name)
        if not small:
            small.append(slurm.run_job(("n3",)))

    while not extra_in_open_seat(world):
        world.run(0.1, 0.1)
    slurm.delete_reservation = deleted  # type: ignore[method-assign]
    jobs[1] = replace(jobs[1], num_nodes=1)
    world.run(3)
    jobs[1] = replace(jobs[1], num_nodes=2)
    world.run(6)
    assert small
    assert extra_in_open_seat(world) == ["n4"]
    assert not world.journal.db.execute("SELECT text FROM events WHERE what = 'seat.entered'").fetchall()
