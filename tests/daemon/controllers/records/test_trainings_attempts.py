"""The journal has every attempt of every supervised training, with its times, whatever happens to jobs and daemon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import Config
from slurm_robust.core.model import JobRef
from slurm_robust.daemon.store.attempt_ledger import AttemptLedger, SupervisedAttempt
from slurm_robust.marks.claim import Claim, render
from slurm_robust.slurm.client import Job


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Job 1 on two nodes, which could have started ten seconds before it did, of four GPUs each."""
    made = World(tmp_path, FakeSlurm(), Config())
    eligible_at_s = int(made.slurm.now_s) - 10
    made.slurm.run_job(("n1", "n2"), name="llm", gres="gres:gpu:4", eligible_at_s=eligible_at_s)
    yield made
    made.journal.close()


def job(world: World, job_id: int = 1) -> Job:
    """As Slurm has it."""
    return world.slurm.state.jobs[job_id]


def tells(
    world: World,
    job_id: int = 1,
    state: str = "watching",
    lineage: str = "",
    *,
    times: Mapping[str, float] | None = None,
    **progress: float,
) -> None:
    """The job's claim, with its progress."""
    now = job(world, job_id)
    lineage = lineage or f"line-{job_id}"
    claim = Claim(
        state,
        lineage,
        restart=now.restart_count,
        at_s=world.slurm.now_s,
        times=times or {},
        progress={"every": 60.0, **progress},
    )
    world.slurm.state.jobs[job_id] = replace(now, comment=render(claim))


def change(world: World, job_id: int = 1, **changes: object) -> None:
    """Slurm's record of the job changes."""
    world.slurm.state.jobs[job_id] = replace(job(world, job_id), **changes)  # type: ignore[arg-type]


def rows(world: World) -> list[SupervisedAttempt]:
    """All attempts, oldest first."""
    return AttemptLedger(world.journal).attempts(0.0, 1e12)


def shown(world: World) -> dict[str, object]:
    """The only training of the snapshot."""
    found = published(world.daemon)
    (one,) = [*found["jobs"], *found["waiting"]]
    return {name: one[name] for name in ("ettr", "ettr_hour", "spent", "speed_s", "step_at_s")}


def test_a_training_from_start_to_end(world: World) -> None:
    """Its row is there from the first claim on, its steps as they are told, its end as Slurm says."""
    began_s = world.slurm.now_s
    tells(world)
    world.run(6)
    (row,) = rows(world)
    assert (row.cluster, row.job_id, row.user, row.name, row.partition) == ("fake", 1, "ann", "llm", "main")
    assert (row.nodes, row.times.nodes, row.times.gpus, row.state) == (("n1", "n2"), 2, 8, "")
    assert (row.times.eligible_at_s, row.times.start_at_s, row.times.first_step_at_s) == (began_s - 10, began_s, None)
    tells(world, first=began_s + 5, new=began_s + 5, last=began_s + 6, step=2.0)
    world.run(2)
    assert rows(world)[0].times.first_step_at_s == began_s + 5, "written at once"
    tells(world, first=began_s + 5, new=began_s + 5, last=began_s + 90, step=80.0, ckpt=3.0, slow=2.0, pace=1.0)
    world.run(100)
    told = shown(world)
    # What lies in the future is not believed: the time stays that of the report before.
    assert (told["speed_s"], told["step_at_s"]) == (1.0, began_s + 6)
    assert told["spent"] == {"queue": 10, "start": 5, "productive": 98, "checkpoint": 3, "slow": 2}
    assert told["ettr"] == told["ettr_hour"] == pytest.approx(98 / 118, abs=1e-3)
    change(world, state="COMPLETED", end_at_s=int(world.slurm.now_s), nodes=())
    world.run(6)
    (row,) = rows(world)
    assert (row.state, row.times.end_at_s, row.times.last_step) == ("COMPLETED", began_s + 108, 80)
    assert (row.times.checkpoint_s, row.times.slow_s, row.times.step_s) == (3, 2, 1)
    assert not world.daemon.trainings.running


def test_a_failure_and_the_requeue_by_the_daemon(world: World) -> None:
    """Two attempts of one training; while it waits, the time is the restart's; then old steps are made again."""
    began_s = world.slurm.now_s
    tells(world, first=began_s + 5, new=began_s + 5, last=began_s + 20, step=20.0)
    world.run(60)
    times = {"fault": began_s + 50, "suspected": began_s + 55, "decided": began_s + 60}
    progress = {"first": began_s + 5, "new": began_s + 5, "last": began_s + 50, "step": 50.0}
    world.claim(1, ("n2",), times=times, progress=progress)
    world.run(2)
    row = rows(world)[0]
    assert (row.state, row.times.last_step, row.times.last_step_at_s) == ("REQUEUED", 50, began_s + 50)
    assert began_s + 60 <= (row.times.end_at_s or 0) <= began_s + 63
    world.run(20)
    again = job(world)
    assert (again.state, again.restart_count) == ("RUNNING", 1)
    first_s = again.start_at_s + 5
    world.run(10)
    tells(world, first=first_s, new=first_s + 3, last=first_s + 4, step=51.0)
    world.run(6)
    assert [(r.times.restart, r.nodes, r.state) for r in rows(world)] == [
        (0, ("n1", "n2"), "REQUEUED"),
        (1, again.nodes, ""),
    ]
    spent = shown(world)["spent"]
    assert isinstance(spent, dict)
    assert spent["productive"] == pytest.approx(45 + world.slurm.now_s - first_s - 3)
    assert (spent["detection"], spent["diagnosis"], spent["recomputation"]) == (5, 5, 3)
    assert spent["restart"] == pytest.approx(first_s - began_s - 60)


def test_a_training_that_waits_is_shown(world: World) -> None:
    """Also by a daemon that did not see it run."""
    began_s = world.slurm.now_s
    tells(world, first=began_s + 1, new=began_s + 1, last=began_s + 29, step=9.0)
    world.run(30)
    change(world, state="PENDING", nodes=(), restart_count=1, start_at_s=0, submit_at_s=int(world.slurm.now_s))
    world.slurm.state.jobs[1] = replace(job(world), start_at_s=int(world.slurm.now_s) + 1000)
    world.run(40)
    world.live()
    world.run(6)
    spent = shown(world)["spent"]
    assert isinstance(spent, dict)
    assert spent["queue"] == pytest.approx(10 + 46, abs=1.1)
    assert (spent["start"], spent["productive"]) == (1, pytest.approx(29, abs=1.1))


def test_a_daemon_that_is_killed_goes_on_with_the_same_rows(world: World) -> None:
    """Neither a second row, nor a lost end."""
    began_s = world.slurm.now_s
    tells(world, first=began_s + 1, new=began_s + 1, last=began_s + 2, step=1.0)
    world.run(6)
    world.live()
    tells(world, first=began_s + 1, new=began_s + 1, last=began_s + 50, step=50.0)
    world.run(6)
    world.live()
    world.run(6)
    assert len(rows(world)) == 1
    world.live()
    change(world, state="FAILED", end_at_s=int(world.slurm.now_s))
    world.run(6)
    (row,) = rows(world)
    assert (row.state, row.times.last_step) == ("FAILED", 50)


def test_a_job_that_vanished_ends_with_its_last_sight(world: World) -> None:
    """The daemon was away for so long that slurmctld has forgotten the job."""
    tells(world)
    world.run(90)
    seen_s = world.slurm.now_s
    world.slurm.state.jobs.clear()
    world.slurm.pass_s(5000)
    world.live()
    world.run(6)
    (row,) = rows(world)
    assert row.state == "VANISHED"
    assert row.times.end_at_s == row.times.seen_at_s == pytest.approx(seen_s, abs=61)


def test_a_job_id_that_is_used_again_is_another_training(world: World) -> None:
    """Slurm starts anew at its largest job id."""
    tells(world)
    world.run(6)
    world.slurm.pass_s(100)
    del world.slurm.state.jobs[1]
    world.slurm.run_job(("n3",), user="bob")
    tells(world, lineage="other")
    world.run(6)
    assert [(r.user, r.times.lineage, r.state) for r in rows(world)] == [
        ("ann", "line-1", "VANISHED"),
        ("bob", "other", ""),
    ]


def test_array_tasks_and_parts_of_a_het_job_have_rows_of_their_own(world: World) -> None:
    """By the raw id, with the address that people type."""
    task = world.slurm.run_job(("n3",), ref=JobRef(2, 9, 4))
    part = world.slurm.run_job(("n4",), ref=JobRef(3, het_offset=1), hetjob_id=9)
    for one in (task, part):
        tells(world, one.ref.job_id)
    world.run(6)
    assert [(r.job_id, r.times.job) for r in rows(world)] == [(2, "9_4"), (3, "3")]


def test_a_clock_that_is_set_back_stops_nothing(world: World) -> None:
    """Rows are written, and what contradicts itself is unknown, not an error."""
    tells(world, first=world.slurm.now_s + 1, last=world.slurm.now_s + 40, step=9.0)
    world.run(60)
    world.slurm.now_s -= 3600
    tells(world, first=world.slurm.now_s + 1, last=world.slurm.now_s + 40, step=10.0)
    world.run(6)
    assert rows(world)[0].times.last_step == 10
    assert published(world.daemon)["troubles"] == []


def test_a_training_that_is_done_while_its_job_goes_on(world: World) -> None:
    """It ends then; the next one of the same script is a training of its own; both get the job's state at its end."""
    began_s = world.slurm.now_s
    tells(world, first=began_s + 1, last=began_s + 2, step=3.0)
    world.run(20)
    tells(world, state="done", first=began_s + 1, last=began_s + 19, step=30.0)
    world.run(20)
    (row,) = rows(world)
    assert (row.state, row.times.end_at_s, row.times.last_step) == ("DONE", began_s + 20, 30)
    tells(world, lineage="second")
    world.run(20)
    assert [(r.times.lineage, r.times.start_at_s) for r in rows(world)] == [
        ("line-1", began_s),
        ("second", began_s + 40),
    ]
    change(world, state="COMPLETED", end_at_s=int(world.slurm.now_s))
    world.run(6)
    assert {(r.times.lineage, r.state, r.times.end_at_s) for r in rows(world)} == {
        ("line-1", "COMPLETED", began_s + 20), ("second", "COMPLETED", began_s + 60)
    }  # fmt: skip


def test_restarts_in_place_are_one_attempt(world: World) -> None:
    """Each claim tells the steps of the latest launch; the row remembers all."""
    at_s = world.slurm.now_s
    tells(world, first=at_s + 1, new=at_s + 1, last=at_s + 2, step=1.0)
    world.run(60)
    tells(world, first=at_s + 50, last=at_s + 50, step=0.0)
    world.run(6)
    assert rows(world)[0].times.restarts_within == ((at_s + 50, None),)
    tells(world, first=at_s + 50, new=at_s + 58, last=at_s + 60, step=20.0)
    world.run(6)
    (row,) = rows(world)
    assert (row.times.first_step_at_s, row.times.restarts_within) == (at_s + 1, ((at_s + 50, at_s + 58),))


def test_launches_while_no_daemon_read_leave_a_stretch_that_nobody_watched(world: World) -> None:
    """It was killed, two incidents passed, and the job tells of the second alone: what was before it is unknown."""
    at_s = world.slurm.now_s
    tells(world, first=at_s + 1, new=at_s + 1, last=at_s + 2, step=1.0, pace=1.0)
    world.run(6)
    world.slurm.now_s += 300
    tells(world, times={"fault": at_s + 200}, first=at_s + 210, new=at_s + 214, last=at_s + 290, step=99.0)
    world.live()
    world.run(6)
    (row,) = rows(world)
    assert row.times.restarts_within == ((at_s + 210, at_s + 214),)
    ((begin_s, end_s),) = row.times.unwatched
    assert (at_s + 2 <= begin_s <= at_s + 10, end_s) == (True, at_s + 200)
    tells(world, times={"fault": at_s + 308}, first=at_s + 312, last=at_s + 313, step=99.0)
    world.run(10)
    assert rows(world)[0].times.unwatched == row.times.unwatched, "a daemon that reads sees each launch"


def test_a_first_launch_that_no_daemon_saw_is_no_long_start(world: World) -> None:
    """It made steps, and the job tells of the incident that ended it: from the start of the run to that, who knows."""
    at_s = world.slurm.now_s
    world.slurm.now_s += 300
    tells(world, times={"fault": at_s + 200}, first=at_s + 210, new=at_s + 214, last=at_s + 290, step=99.0)
    world.live()
    world.run(6)
    (row,) = rows(world)
    assert row.times.unwatched == ((row.times.start_at_s, at_s + 200),)


def test_the_checkpoint_of_an_attempt_is_that_of_its_first_launch(world: World) -> None:
    """A restart within it may begin from a newer one."""
    at_s = world.slurm.now_s
    for step, progress in ((-1, {}), (-1, {"first": at_s + 1}), (10, {"first": at_s + 1})):
        claim = Claim("watching", "line-1", resume_step=step, at_s=at_s, progress=progress)
        change(world, comment=render(claim))
        world.run(3)
    assert rows(world)[0].times.resume_step == -1


def test_a_claim_cannot_make_up_rows_gpus_or_times(world: World) -> None:
    """It is untrusted: few trainings a run, no more GPUs than the nodes have, no steps in the future."""
    change(world, gres="")
    for name in ("n1", "n2"):
        world.slurm.state.nodes[name] = replace(world.slurm.state.nodes[name], gres="gpu:a100:4(S:0-1),nic:1")
    for number in range(120):
        tells(world, lineage=f"l{number}", first=9e15, slow=1e300, ckpt=-5.0, gpus=1e6, step=1e300, pace=-1.0)
        world.run(2)
    assert len(rows(world)) == 50
    for row in rows(world):
        assert (row.times.gpus, row.times.first_step_at_s, row.times.checkpoint_s) == (8, None, 0)
        assert 0 <= row.times.slow_s <= 1000
        assert (row.times.last_step, row.times.step_s) == (-1, 0)
    assert published(world.daemon)["troubles"] == []


def test_a_stale_claim_begins_the_attempt_and_tells_nothing_of_it(world: World) -> None:
    """After a requeue the old claim stays until the next supervisor writes; its times belong to the attempt before."""
    at_s = world.slurm.now_s
    tells(world, first=at_s + 1, last=at_s + 2, step=3.0)
    change(world, restart_count=1)
    world.run(6)
    (row,) = rows(world)
    assert (row.times.restart, row.times.lineage, row.times.first_step_at_s) == (1, "line-1", None)


def test_rows_are_forgotten_with_the_incidents(world: World) -> None:
    """Those that ended before the site's retention; what runs stays."""
    tells(world)
    world.slurm.run_job(("n3",))
    tells(world, 2)
    world.run(6)
    change(world, state="COMPLETED", end_at_s=int(world.slurm.now_s))
    world.run(6)
    world.journal.forget_before(world.slurm.now_s + 1)
    assert [r.job_id for r in rows(world)] == [2]


def test_a_window_and_the_whole_training(world: World) -> None:
    """A report of one hour needs what had happened before it."""
    tells(world)
    world.run(6)
    change(world, state="PENDING", restart_count=1, nodes=(), start_at_s=int(world.slurm.now_s) + 5000)
    world.run(5200, step_s=20.0)
    tells(world)
    world.run(100, step_s=20.0)
    ledger, now_s = AttemptLedger(world.journal), world.slurm.now_s
    assert [r.times.restart for r in ledger.attempts(now_s - 50, now_s)] == [1]
    assert [r.times.restart for r in ledger.attempts(now_s - 50, now_s, whole=True)] == [0, 1]
    assert ledger.attempts(0, 10) == []


def test_a_job_whose_claim_cannot_be_read_any_more_is_still_seen(world: World) -> None:
    """Its user has overwritten it: the attempt lives as long as its job."""
    tells(world)
    world.run(6)
    change(world, comment="[[srobust:1 {garbled}]]")
    world.run(200)
    seen_s = world.slurm.now_s
    del world.slurm.state.jobs[1]
    world.run(6)
    (row,) = rows(world)
    assert row.state == "VANISHED"
    assert row.times.end_at_s == pytest.approx(seen_s, abs=3)
