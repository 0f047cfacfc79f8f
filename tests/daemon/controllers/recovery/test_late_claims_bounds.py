"""A job that waits is its user's to change: a claim that is read late gives it no more than it had."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World, worlds

from slurm_robust.marks.claim import Claim, render
from slurm_robust.slurm.client import Job


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Six nodes, of which two are on standby, and Ben's job runs on one."""
    with worlds(tmp_path, World) as make:
        made = make("standby: {size: 2}", 6)
        made.slurm.run_job(("n2",), user="ben")
        yield made


def requeues_and_grows(world: World, evict: tuple[str, ...], comment: str) -> Job:
    """`scontrol requeue`, `scontrol update NumNodes=4-4`, and a claim of the attempt before."""
    jobs, ref = world.slurm.state.jobs, world.slurm.run_job(("n1",), comment=comment).ref
    world.run(6)
    world.slurm.requeue(ref)
    world.slurm.pass_s(1)
    text = render(Claim("wants", "l", restart=0, incident="i1", evict=evict, why="hang"))
    jobs[ref.job_id] = replace(jobs[ref.job_id], num_nodes=4, comment=text)
    world.run(12)
    return jobs[ref.job_id]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("evict", [(), ("n1",)])
def test_a_job_that_was_made_larger_gets_no_seat(world: World, evict: tuple[str, ...], known: bool) -> None:
    """For four nodes it waits in the queue, like everybody; its suspect is checked all the same.

    Of a job of which nobody knows where it ran, nobody knows either how many nodes it had.
    """
    job = requeues_and_grows(world, evict, render(Claim("watching", "l")) if known else "")
    assert job.state == "PENDING"
    assert not [name for name in world.slurm.state.reservations if "seat" in name]
    assert world.outcomes() == ["refused" if evict and not known else "running"]
    assert ("create srobust-quarantine-n1" in world.slurm.acts) == (bool(evict) and known)
