"""Trainings that Slurm forgets while they run, as after `slurmctld -c`, are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import Config
from slurm_robust.daemon import log_alerts
from slurm_robust.daemon.api.needs import needs
from slurm_robust.marks.claim import Claim, render
from slurm_robust.slurm.client import PastRun
from slurm_robust.slurm.errors import SlurmRefusedError


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two trainings that run, and a job that nobody supervises."""
    made = World(tmp_path, FakeSlurm(), Config())
    for node in ("n1", "n2"):
        job = made.slurm.run_job((node,), name="llm")
        claim = render(Claim("watching", f"line-{node}"))
        made.slurm.state.jobs[job.ref.job_id] = replace(job, comment=claim)
    made.slurm.run_job(("n3",))
    made.run(10)
    yield made
    made.journal.close()


def told(world: World) -> list[str]:
    """What status says of it."""
    state = published(world.daemon)
    return [sentence for sentence in needs(state, state["at_s"]) if "lost" in sentence]


def events(world: World) -> list[str]:
    """The daemon's lines about it."""
    rows = world.journal.db.execute("SELECT text FROM events WHERE what = 'training.vanished'").fetchall()
    return [row["text"] for row in rows]


def past(world: World, job_id: int, ended_at_s: float | None) -> PastRun:
    """What the accounting has of a run that began with the test."""
    began_s = int(world.slurm.state.jobs[job_id].start_at_s)
    ended_s = None if ended_at_s is None else int(ended_at_s)
    state = "RUNNING" if ended_s is None else "COMPLETED"
    where = ("main", "n1", 1, 0, began_s, began_s, began_s, ended_s, state, "0:0")
    return PastRun(job_id, str(job_id), "fake", "ann", "", "llm", *where)


def test_a_state_that_was_lost_is_told(world: World) -> None:
    """Once, in one sentence for all, with what to type; it stands in status for a day, also after a restart."""
    world.slurm.state.jobs.clear()
    world.run(5)
    (sentence,) = told(world)
    assert "2 running trainings (job 1 of ann, job 2 of ann)" in sentence
    assert sentence.endswith(": sacct -j 1,2")
    assert len(events(world)) == 1
    alert = log_alerts.alert_of(1.0, "training.vanished", events(world)[0])
    assert alert is not None
    assert alert.event == "not_resumed"
    world.live()
    world.run(10)
    assert told(world) == [sentence]
    assert len(events(world)) == 1
    world.run(86400, step_s=600)
    assert told(world) == []


def test_a_job_that_ended_while_nobody_looked_is_none(world: World) -> None:
    """The accounting has its end: Slurm has only forgotten it in time."""
    world.slurm.past = [past(world, 1, world.slurm.now_s + 1), past(world, 2, world.slurm.now_s + 1)]
    world.slurm.state.jobs.clear()
    world.run(20)
    assert not events(world)


def test_a_daemon_that_was_away_believes_the_accounting_alone(world: World) -> None:
    """After a night, a job that is not there has ended as a rule; what the accounting still calls running has not."""
    world.slurm.past = [past(world, 2, None)]
    world.slurm.pass_s(36000)
    world.slurm.state.jobs.clear()
    world.live()
    world.run(20)
    (sentence,) = told(world)
    assert "1 running training (job 2 of ann)" in sentence


def test_a_site_without_accounting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran a moment ago was lost, since Slurm keeps ended jobs for minutes; what ran last night is not known."""

    def off(*_: object, **__: object) -> None:
        raise SlurmRefusedError("read past jobs", "Slurm accounting storage is disabled")

    monkeypatch.setattr(world.slurm, "past_runs", off)
    del world.slurm.state.jobs[1]
    world.run(5)
    assert "job 1 of ann" in told(world)[0]
    world.slurm.pass_s(36000)
    world.slurm.state.jobs.clear()
    world.live()
    world.run(20)
    assert len(events(world)) == 1


def test_an_ids_next_job_is_another(world: World) -> None:
    """A slurmctld without its state counts from the beginning: the new job 1 is not the old one's next attempt."""
    old = world.slurm.state.jobs[1]
    world.slurm.pass_s(5)
    world.slurm.state.jobs.clear()
    now_s = int(world.slurm.now_s)
    new = replace(old, comment="", submit_at_s=now_s, start_at_s=now_s, nodes=("n4",))
    world.slurm.state.jobs[1] = new
    world.run(5)
    assert "job 1 of ann, job 2 of ann" in told(world)[0]
