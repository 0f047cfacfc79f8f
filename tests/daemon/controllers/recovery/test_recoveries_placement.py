"""A job never starts outside its seat, whatever Slurm's delay after a requeue and whatever it takes in one call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import REQUEUE_DELAY_S, FakeSlurm

from slurm_robust.config.site import Config
from slurm_robust.slurm.values import expand


def recovered(tmp_path: Path, *, delay_s: int, refuses: bool) -> World:
    """A job of two nodes whose second one is a suspect, on its way back; n3 is free as well as the standby node."""
    world = World(tmp_path, FakeSlurm(5), Config())
    world.slurm.requeue_delay_s, world.slurm.refuses_placement = delay_s, refuses
    world.slurm.run_job(("n1", "n2"))
    world.run(6)
    world.claim(1, ("n2",))
    world.run(12, step_s=0.25)
    return world


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("delay_s", [0, 1, REQUEUE_DELAY_S])
def test_job_runs_in_its_seat(tmp_path: Path, delay_s: int, refuses: bool) -> None:
    """With and without Slurm's delay; a Slurm that refuses the placement has it in a call of its own."""
    world = recovered(tmp_path, delay_s=delay_s, refuses=refuses)
    job = world.slurm.state.jobs[1]
    assert (job.state, job.restart_count, set(expand(job.exclude or ""))) == ("RUNNING", 1, {"n2"})
    (row,) = world.journal.incidents()
    assert row.recovery is not None
    assert set(job.nodes) == set(row.recovery.seat_nodes)
    assert world.outcomes() == ["running"]
    assert "outside" not in row.reason
    calls = world.slurm.acts.count("update 1")
    world.run(60)
    assert world.slurm.acts.count("update 1") == calls, "it is not pointed again and again"
    world.journal.close()


def test_job_that_runs_outside_its_seat_is_reported(tmp_path: Path) -> None:
    """Incident and alert name the nodes on which Slurm shows it, and what was planned."""
    world = World(tmp_path, FakeSlurm(5), Config())
    world.slurm.run_job(("n1", "n2"))
    world.run(6)
    world.claim(1, ("n2",))
    while world.slurm.state.jobs[1].restart_count == 0:
        world.run(0.25, step_s=0.25)
    elsewhere = replace(world.slurm.state.jobs[1], state="RUNNING", completing=False, nodes=("n2", "n5"), reason="")
    world.slurm.state.jobs[1] = elsewhere
    world.run(6)
    (row,) = world.journal.incidents()
    assert row.outcome == "running"
    assert "runs again, on n[2,5], although it was to leave n2 out" in row.reason
    query = "SELECT level FROM events WHERE what = 'recovery.running'"
    assert [event["level"] for event in world.journal.db.execute(query)] == ["warning"]
    world.journal.close()
