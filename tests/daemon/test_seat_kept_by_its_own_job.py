"""A seat that its user wants to keep, with the seat's own job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_world import World, worlds

from slurm_robust.core.model import JobRef
from slurm_robust.slurm.client import Job, JobChanges
from slurm_robust.slurm.errors import SlurmRefusedError

ONE = "quarantine: {max_per_user_hour: 0}\nseat: {max_active: 1, start_timeout_s: 20}"
SEAT = "srobust-seat-1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Ann's job on two of five nodes and Ben's on one; there is one seat at a time."""
    with worlds(tmp_path, World) as make:
        made = make(ONE, 5)
        made.slurm.run_job(("n1", "n2"))
        made.slurm.run_job(("n5",), user="ben")
        made.run(4)
        yield made


def bens_seat(world: World) -> None:
    """Ben's job is brought back."""
    world.claim(2, ("n5",))
    world.run(8)
    job = world.slurm.state.jobs[2]
    assert (job.state, job.restart_count) == ("RUNNING", 1)


def test_a_job_that_is_put_back_into_its_seat_does_not_keep_it(world: World) -> None:
    """Ann lets it wait for another job, and puts it back faster than the daemon takes it out: the seat is closed."""
    slurm, starts, change, left = world.slurm, world.slurm._try_start, world.slurm.update_job, list[str]()

    def changed(job: JobRef, **changes: JobChanges) -> None:
        change(job, **changes)  # type: ignore[arg-type]
        if changes.get("reservation") == "" and SEAT in slurm.state.reservations:
            left.append(job.address)
            try:
                change(job, reservation=SEAT)
            except SlurmRefusedError:
                return

    slurm._try_start = lambda job: None if job.ref.job_id == 1 else starts(job)  # type: ignore[method-assign]
    slurm.update_job = changed  # type: ignore[assignment,method-assign]
    world.claim(1, ("n2",))
    world.run(20)
    assert slurm.state.reservations[SEAT].users == ("ann",)
    world.run(10)
    assert left == ["1", "1"]
    assert SEAT not in slurm.state.reservations
    assert world.outcomes() == ["not_started"]
    bens_seat(world)


def test_a_job_that_is_requeued_at_each_start_does_not_keep_its_seat(world: World) -> None:
    """Ann requeues it as soon as it starts, before the daemon has seen that: it is given up, and Ben gets a seat."""
    slurm, starts, count = world.slurm, world.slurm._try_start, list[int]()

    def started(job: Job) -> None:
        starts(job)
        if job.ref.job_id == 1 and slurm.state.jobs[1].state == "RUNNING":
            count.append(1)
            slurm.requeue(job.ref)

    slurm._try_start = started  # type: ignore[method-assign]
    world.claim(1, ("n2",))
    world.run(40)
    assert len(count) == 4
    assert SEAT not in slurm.state.reservations
    assert world.outcomes() == ["aborted"]
    assert "the job was requeued 5 times" in world.journal.incidents()[0].reason
    bens_seat(world)
