"""What goes wrong with one job stays with that job: the others are heard, and their recoveries go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config
from slurm_robust.daemon.controllers.recovery import recoveries
from slurm_robust.daemon.controllers.recovery.claim_intake import ClaimIntake
from slurm_robust.policy.cluster.recovery_plan import Recovery
from slurm_robust.policy.cluster.recovery_step import Step, next_step
from slurm_robust.policy.cluster.recovery_view import View
from slurm_robust.slurm.client import Job


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Eight nodes; jobs 1 and 2 run on two each."""
    made = World(tmp_path, FakeSlurm(8), Config())
    made.slurm.run_job(("n1", "n2"))
    made.slurm.run_job(("n3", "n4"))
    made.run(6)
    yield made
    made.journal.close()


def errors(world: World) -> list[str]:
    """What was logged as an error of the daemon's own."""
    return [r["text"] for r in world.journal.db.execute("SELECT text FROM events WHERE what = 'daemon.error'")]


def test_a_number_of_400_digits_is_a_malformed_claim(world: World) -> None:
    """One user's comment is told of, and the next job's claim is answered all the same."""
    comment = '[[srobust:1 {"state":"watching","lineage":"a","at_s":' + "9" * 400 + "}]]"
    world.slurm.state.jobs[1] = replace(world.slurm.state.jobs[1], comment=comment)
    world.claim(2, ("n4",))
    world.run(30)
    assert world.outcomes() == ["running"]
    assert world.slurm.state.jobs[2].restart_count == 1
    assert not errors(world)


def test_an_error_with_one_jobs_claim_leaves_the_others_heard(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged once with the job's name; the same words are not weighed again, later ones are."""
    weigh, wrong = ClaimIntake._parse, [True]

    def parse(self: ClaimIntake, job: Job) -> object:
        if job.ref.job_id == 1 and wrong[0]:
            raise ZeroDivisionError("ours")
        return weigh(self, job)

    monkeypatch.setattr(ClaimIntake, "_parse", parse)
    world.claim(1, ("n2",))
    world.claim(2, ("n4",))
    world.run(30)
    assert world.slurm.state.jobs[1].restart_count == 0
    assert world.slurm.state.jobs[2].restart_count == 1
    assert errors(world) == ["job 1 of ann: its claim is ignored: ZeroDivisionError: ours"]
    wrong[0] = False
    world.claim(1, ("n2",), incident="i2")
    world.run(30)
    assert world.slurm.state.jobs[1].restart_count == 1


def test_an_error_with_one_recovery_leaves_the_others_going(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged once and tried again: when the cause is gone, that one comes through too."""
    wrong = [True]

    def step(r: Recovery, view: View) -> Step:
        if r.job.job_id == 1 and wrong[0]:
            raise ZeroDivisionError("ours")
        return next_step(r, view)

    monkeypatch.setattr(recoveries, "next_step", step)
    world.claim(1, ("n2",))
    world.claim(2, ("n4",))
    world.run(30)
    assert world.slurm.state.jobs[2].restart_count == 1
    assert len(errors(world)) == 1
    wrong[0] = False
    world.run(60)
    assert world.slurm.state.jobs[1].restart_count == 1
    assert world.outcomes() == ["running", "running"]
