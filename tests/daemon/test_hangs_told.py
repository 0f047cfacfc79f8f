"""A job hangs, and nothing is done about it: people are told, once."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from daemon_world import World
from snapshots import published

from slurm_robust.daemon import log_alerts
from slurm_robust.daemon.api.needs import needs

WHY = "rank 2 on n2 holds the others up"
COMMAND = "srobust incidents 1; srobust stacks 1; scontrol requeue 1 (starts it anew)"


def hang(
    world: World, mode: str = "observe", road: str = "restart_in_place", incident: str = "i1", **more: object
) -> None:
    """The job suspects a fault since a minute, and does nothing about it."""
    said = {
        "state": "watching",
        "road": road,
        "mode": mode,
        "why": WHY,
        "suspected_at_s": world.slurm.now_s - 60,
        **more,
    }
    world.claim(1, (), incident, **said)


def told(world: World) -> list[str]:
    """What the log has of hangs."""
    return [r["text"] for r in world.journal.db.execute("SELECT text FROM events WHERE what = 'training.hangs'")]


def test_a_hang_that_is_only_observed_is_told_once(world: World) -> None:
    """With its time, its culprit and what mode act would do; again only for the next hang, also by the next daemon."""
    hang(world)
    world.run(40)
    (line,) = told(world)
    alert = log_alerts.alert_of(world.slurm.now_s, "training.hangs", line)
    assert alert is not None
    assert (alert.event, alert.severity, alert.job, alert.command) == ("hang", "warning", "1", COMMAND)
    assert alert.happened.startswith("Job 1 hangs since ")
    assert alert.happened.endswith(f" UTC: {WHY}")
    assert alert.done == "nothing is done (mode observe; in mode act: restart in place)"
    world.live()
    world.run(40)
    assert len(told(world)) == 1
    world.claim(1, (), "i1", state="watching")
    world.run(5)
    hang(world, incident="i2")
    world.run(40)
    assert len(told(world)) == 2


def test_a_later_suspicion_is_not_the_hang_that_was_left_alone(world: World) -> None:
    """The job went on, and is silent for another reason, such as its end: people are told once that is judged, too."""
    hang(world)
    world.run(40)
    world.claim(1, (), "i1", state="watching")
    world.run(5)
    hang(world, suspected_at_s=world.slurm.now_s - 1)
    world.run(40)
    assert len(told(world)) == 1
    assert not any("no progress" in said for said in needs(published(world.daemon), world.slurm.now_s))
    hang(world, incident="i2")
    world.run(40)
    assert len(told(world)) == 2
    assert any("no progress" in said for said in needs(published(world.daemon), world.slurm.now_s))


def test_a_hang_that_nothing_may_be_done_about_is_told(world: World) -> None:
    """In mode act, too: it is only alerted on."""
    hang(world, "act", "alert_only")
    world.run(40)
    (line,) = told(world)
    alert = log_alerts.alert_of(world.slurm.now_s, "training.hangs", line)
    assert alert is not None
    assert alert.done == "nothing is done (alert only)"
    assert alert.command == COMMAND


def test_of_one_of_several_sruns_people_are_not_told_to_requeue_the_job() -> None:
    """The other one may train on: its work would be lost."""
    line = "1.i1: nothing is done (several sruns of the job run at once), since 10:00:00 UTC: rank 1 hangs"
    alert = log_alerts.alert_of(0.0, "training.hangs", line)
    assert alert is not None
    assert alert.happened.startswith("An srun of job 1 hangs since 10:00:00 UTC")
    assert alert.command == "srobust incidents 1; srobust stacks 1"


def test_whoever_is_told_of_a_job_that_may_not_be_requeued_is_not_told_to_requeue_it() -> None:
    """Its user can only cancel it."""
    line = "1.i1: nothing is done (alert only), since 10:00:00 UTC: rank 1 hangs. The job may not be requeued"
    alert = log_alerts.alert_of(0.0, "training.hangs", line)
    assert alert is not None
    assert alert.command == "srobust incidents 1; srobust stacks 1; scancel 1"


def test_a_hang_that_is_acted_on_later_is_told_once_with_the_time(world: World) -> None:
    """In mode act: nothing before the time that the claim names, what to type meanwhile; `srobust status` says it too.

    What the job does then is the same hang; so is what a job that only observes would do then.
    """
    acts_at_s = world.slurm.now_s + 1500
    hang(world, "act", "alert_only", acts_at_s=acts_at_s)
    world.run(40)
    (line,) = told(world)
    alert = log_alerts.alert_of(world.slurm.now_s, "training.hangs", line)
    assert alert is not None
    at = time.strftime("%H:%M:%S UTC", time.gmtime(acts_at_s))
    assert alert.done == f"nothing is done before {at} (the evidence is not sure enough)"
    assert alert.command.endswith("srobust stacks 1; scontrol requeue 1 (starts it anew)")
    (said,) = (said for said in needs(published(world.daemon), world.slurm.now_s) if "no progress" in said)
    assert "nothing is done about it for another 24 min" in said
    assert "srobust stacks 1; scontrol requeue 1 (starts it anew)" in said
    world.claim(1, (), "i1", state="watching", road="alert_only", mode="act")
    world.run(20)
    assert len(moves(world)) == 1
    assert not any("no progress" in said for said in needs(published(world.daemon), world.slurm.now_s))


def test_what_an_observing_job_would_do_at_its_limit_is_no_second_hang(world: World) -> None:
    """First its evidence is not sure enough, and then the limit is reached: told once, with the first."""
    acts_at_s = world.slurm.now_s + 100
    hang(world, "observe", "alert_only", acts_at_s=acts_at_s)
    world.run(40)
    at = time.strftime("%H:%M:%S UTC", time.gmtime(acts_at_s))
    assert f"nothing is done (mode observe; in mode act: nothing before {at}), since" in told(world)[0]
    hang(world, "observe", "restart_in_place")
    world.run(40)
    assert len(told(world)) == 1


def test_two_sruns_at_once_are_named_as_the_reason(world: World) -> None:
    """The job is in mode act, and so is the site: it observes, since one supervisor might take the other's nodes."""
    hang(world, "observe", "stop", own_mode="act")
    world.run(40)
    assert "nothing is done (several sruns of the job run at once), since" in told(world)[0]
    (said,) = (said for said in needs(published(world.daemon), world.slurm.now_s) if "no progress" in said)
    assert "nothing is done about it (several sruns of the job run at once)" in said


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_what_is_no_hang_is_not_told(world: World, mode: str) -> None:
    """A crash, after which the job ends; a hang that is over; one that is mended."""
    hang(world, mode)
    world.run(3)
    ended = {"observe": {"state": "done"}, "act": {"times": {"running": world.slurm.now_s}}}[mode]
    world.claim(1, (), "i1", **{"state": "watching", "road": "restart_in_place", "mode": mode, **ended})
    world.run(40)
    assert told(world) == []


def test_a_job_that_ends_at_once_is_not_told(world: World) -> None:
    """Its claim is its last word."""
    hang(world)
    world.slurm.state.jobs[1] = replace(world.slurm.state.jobs[1], state="FAILED")
    world.run(40)
    assert told(world) == []


def moves(world: World) -> list[str]:
    """What the log has of hangs that are over."""
    return [r["text"] for r in world.journal.db.execute("SELECT text FROM events WHERE what = 'training.moves'")]


@pytest.mark.parametrize(("mode", "road"), [("observe", "restart_in_place"), ("act", "alert_only")])
def test_a_hang_that_ends_by_itself_is_told_to_be_over(world: World, mode: str, road: str) -> None:
    """Once, also by the next daemon; `srobust status` needs nobody any more."""
    hang(world, mode, road)
    world.run(40)
    assert any("has made no progress" in said for said in needs(published(world.daemon), world.slurm.now_s))
    world.live()
    world.claim(1, (), "i1", state="watching", road=road, mode=mode)
    world.run(20)
    world.live()
    world.run(20)
    (line,) = moves(world)
    alert = log_alerts.alert_of(world.slurm.now_s, "training.moves", line)
    assert alert is not None
    assert (alert.event, alert.severity, alert.job) == ("over", "info", "1")
    assert alert.happened == "Job 1 does not hang any more: it moves again by itself, and nothing was done"
    assert not any("has made no progress" in said for said in needs(published(world.daemon), world.slurm.now_s))


def test_a_hang_that_a_person_has_ended_by_a_requeue_has_not_ended_by_itself(world: World) -> None:
    """As the message advised: the next run takes over the claim's incident, and suspects nothing."""
    hang(world, "act", "alert_only")
    world.run(40)
    jobs = world.slurm.state.jobs
    jobs[1] = replace(jobs[1], restart_count=1, start_at_s=int(world.slurm.now_s))
    world.claim(1, (), "i1", state="watching", mode="act")
    world.run(20)
    (line,) = moves(world)
    alert = log_alerts.alert_of(world.slurm.now_s, "training.moves", line)
    assert alert is not None
    assert alert.happened == "Job 1 does not hang any more: the job was started anew"


def test_a_hang_that_was_not_told_or_whose_job_ends_is_not_told_to_be_over(world: World) -> None:
    """The first is over within seconds; the second job is cancelled."""
    hang(world)
    world.run(3)
    world.claim(1, (), "i1", state="watching", road="restart_in_place", mode="observe")
    world.run(20)
    hang(world, incident="i2")
    world.run(40)
    world.slurm.state.jobs[1] = replace(world.slurm.state.jobs[1], state="CANCELLED")
    world.run(20)
    assert (len(told(world)), moves(world)) == (1, [])
