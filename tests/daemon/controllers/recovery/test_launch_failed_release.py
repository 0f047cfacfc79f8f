"""Jobs that Slurm holds because of a refusing node go on; everybody else's holds stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import REQUEUE_DELAY_S, FakeSlurm

from slurm_robust.config.site import Config
from slurm_robust.core.model import Mode


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A job that runs on n1 and n2."""
    made = World(tmp_path, FakeSlurm(), Config())
    made.slurm.run_job(("n1", "n2"))
    made.run(6)
    yield made
    made.journal.close()


def refuse(slurm: FakeSlurm, node: str, *, tag: str = " [job 1]", reason: str = "launch failed requeued held") -> None:
    """The node's prolog drains it and refuses job 1, which Slurm puts back and holds."""
    old = slurm.state.nodes[node]
    slurm.state.nodes[node] = replace(
        old, flags=frozenset(("DRAIN",)), reason=f"srobust: XID 79{tag}", reason_at_s=int(slurm.now_s)
    )
    job = slurm.state.jobs[1]
    slurm.state.jobs[1] = replace(
        job,
        state="PENDING",
        completing=False,
        nodes=(),
        priority=0,
        reason=reason,
        restart_count=job.restart_count + 1,
        submit_at_s=int(slurm.now_s),
        start_at_s=int(slurm.now_s) + REQUEUE_DELAY_S,
    )


def test_job_that_a_node_refused_runs_elsewhere(world: World) -> None:
    """Released once, and journalled; Slurm's own delay passes, and it runs on other nodes."""
    refuse(world.slurm, "n2")
    world.run(REQUEUE_DELAY_S + 10)
    job = world.slurm.state.jobs[1]
    assert job.state == "RUNNING"
    assert "n2" not in job.nodes
    assert world.slurm.acts.count("release 1") == 1
    (row,) = world.journal.db.execute("SELECT * FROM actions WHERE kind = 'release_job'").fetchall()
    assert row["done_at_s"]
    assert "n2 refused to start it" in row["reason"]


@pytest.mark.parametrize(
    ("tag", "reason"), [(" [job 1]", "JobHeldUser"), (" [job 1]", "JobHeldAdmin"), ("", "launch failed")]
)
def test_other_holds_stay(world: World, tag: str, reason: str) -> None:
    """A person's, and one that no node of ours is known to have caused."""
    refuse(world.slurm, "n2", tag=tag, reason=reason)
    world.run(200)
    assert "release 1" not in world.slurm.acts
    assert world.slurm.state.jobs[1].priority == 0


def test_hold_put_on_by_a_person_just_now_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading of all jobs is old by the time of the act: the one job is read again."""
    slurm = world.slurm
    read = slurm.job

    def meanwhile(ref: object) -> object:
        slurm.state.jobs[1] = replace(slurm.state.jobs[1], reason="JobHeldUser")
        return read(ref)  # type: ignore[arg-type]

    refuse(slurm, "n2")
    monkeypatch.setattr(slurm, "job", meanwhile)
    world.run(60)
    assert "release 1" not in slurm.acts


def test_observing_releases_nothing(tmp_path: Path) -> None:
    """It says what it would do."""
    world = World(tmp_path, FakeSlurm(), Config(), Mode.OBSERVE)
    world.slurm.run_job(("n1", "n2"))
    world.run(6)
    refuse(world.slurm, "n2")
    world.run(20)
    assert world.slurm.acts == []
    assert world.journal.db.execute("SELECT count(*) FROM events WHERE what = 'held.observed'").fetchone()[0]
    world.journal.close()


def test_releases_of_one_job_end(world: World) -> None:
    """A job that every node refuses is left to a person after five times a day."""
    for _ in range(8):
        for name in world.slurm.state.nodes:
            world.slurm.state.nodes[name] = replace(world.slurm.state.nodes[name], flags=frozenset(), reason="")
        refuse(world.slurm, "n2")
        world.run(15)
    assert world.slurm.acts.count("release 1") == 5
    assert world.slurm.state.jobs[1].priority == 0


def test_recovery_goes_on_over_a_refusal(world: World) -> None:
    """On its way back, a standby refuses the job: the recovery ends the hold, once, and sees it run."""
    world.claim(1, ("n2",))
    world.run(0.5)
    (recovery,) = [f.recovery for f in world.daemon.recoveries.open.values()]
    world.slurm.pass_s(0.5)
    restart = world.slurm.state.jobs[1].restart_count
    refuse(world.slurm, recovery.standby[0])
    assert world.slurm.state.jobs[1].restart_count == restart + 1
    world.run(20)
    job = world.slurm.state.jobs[1]
    assert job.state == "RUNNING"
    assert not {"n2", recovery.standby[0]} & set(job.nodes)
    assert world.outcomes() == ["running"]
    assert world.slurm.acts.count("release 1") == 1
