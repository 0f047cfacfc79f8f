"""What jobs do by themselves, in the daemon's journal; and incidents that nobody comes back to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from daemon_world import World
from snapshots import published

from slurm_robust.daemon.api.state_snapshot import show_incident
from slurm_robust.daemon.controllers.recovery.incident_reports import REPORTS


def report(
    world: World, road: str = "restart_in_place", incident: str = "i1", evict: tuple[str, ...] = (), **more: object
) -> None:
    """The job tells of a plan that asks for nothing."""
    said = {"state": "watching", "road": road, "mode": "act", "suspects": ("n2",), **more}
    world.claim(1, evict, incident, **said)


def end(world: World, state: str) -> None:
    """The job ends; Slurm shows it for a while."""
    world.slurm.state.jobs[1] = replace(world.slurm.state.jobs[1], state=state)


def test_a_restart_in_place_is_open_then_running_then_resumed(world: World) -> None:
    """Each as the job tells it; no seat is counted, and nothing is done to Slurm."""
    report(world)
    world.run(2)
    (row,) = world.journal.incidents()
    assert (row.kind, row.state, row.outcome, row.seat) == ("report", "open", "", False)
    shown = show_incident(row, [])
    assert shown["plan"]["road"] == "restart_in_place"
    assert shown["verdict"]["suspects"] == ["n2"]
    assert not {"road", "evict"} & set(shown["verdict"])
    report(world, times={"running": world.slurm.now_s})
    world.run(2)
    assert world.outcomes() == ["running"]
    times = {"running": world.slurm.now_s, "first_new_step": world.slurm.now_s}
    report(world, times=times, step=31, resume_step=20)
    world.run(2)
    (row,) = world.journal.incidents()
    assert (row.state, row.outcome, row.reason) == ("closed", "resumed", "goes on from step 20, step 31 reached")
    assert not [act for act in world.slurm.acts if not act.startswith("comment")]


@pytest.mark.parametrize(
    ("road", "mode", "outcome"),
    [
        ("stop", "act", "stopped"),
        ("alert_only", "act", "alerted"),
        ("stop", "observe", "observed"),
        ("seat", "observe", "observed"),
        ("spare_in_allocation", "observe", "observed"),
    ],
)
def test_every_road_reaches_the_journal(world: World, road: str, mode: str, outcome: str) -> None:
    """In one line of the incidents, closed at once, where nothing more is to come of it."""
    report(world, road, mode=mode, evict=("n2",))
    world.run(2)
    (row,) = world.journal.incidents()
    assert (row.state, row.outcome) == ("closed", outcome)
    plan = show_incident(row, [])["plan"]
    assert (plan["road"], plan["evict"], plan["reason"]) == (road, ["n2"], "hang")


def test_the_last_word_of_a_job_that_has_ended_is_heard(world: World) -> None:
    """The program failed, and its job with it, before the jobs were read again."""
    report(world, "stop")
    end(world, "FAILED")
    world.run(3)
    assert world.outcomes() == ["stopped"]


def test_a_new_step_told_with_the_last_breath_closes_as_resumed(world: World) -> None:
    """A short training: the first new step and its end come in one second."""
    world.claim(1, ("n2",))
    world.run(10)
    assert world.outcomes() == ["running"]
    world.claim(1, (), state="done", times={"first_new_step": world.slurm.now_s}, step=30)
    end(world, "COMPLETED")
    world.run(3)
    assert world.outcomes() == ["resumed"]


@pytest.mark.parametrize("asked", [True, False])
def test_incidents_of_a_cancelled_job_close(world: World, asked: bool) -> None:
    """Whether it came back through a seat or by itself; also where Slurm has forgotten the job."""
    if asked:
        world.claim(1, ("n2",))
        world.run(10)
    else:
        report(world, times={"running": world.slurm.now_s})
        world.run(2)
    assert world.outcomes() == ["running"]
    end(world, "CANCELLED")
    world.run(3)
    (row,) = world.journal.incidents()
    assert (row.state, row.outcome) == ("closed", "ended")
    assert "CANCELLED" in row.reason


def test_an_incident_of_a_job_that_slurm_has_forgotten_closes(world: World) -> None:
    """The daemon was down for so long that Slurm keeps the job no more."""
    report(world, times={"running": world.slurm.now_s})
    world.run(2)
    del world.slurm.state.jobs[1]
    world.run(3)
    assert world.outcomes() == ["ended"]


def test_a_later_incident_closes_the_one_before(world: World) -> None:
    """The restart in place failed before a new step: only the newest is open."""
    report(world, times={"running": world.slurm.now_s})
    world.run(2)
    report(world, incident="i2")
    world.run(2)
    assert world.outcomes() == ["superseded", ""]


def test_a_restart_in_place_that_becomes_a_claim_is_followed(world: World) -> None:
    """No spare was left after all: the same incident asks for a requeue, which is not passed over as heard before."""
    report(world, "spare_in_allocation")
    world.run(2)
    world.claim(1, ("n2",), "i1")
    world.run(20)
    assert world.outcomes() == ["superseded", "running"]
    assert world.slurm.state.jobs[1].restart_count == 1


def test_a_report_wins_nothing_and_floods_nothing(world: World) -> None:
    """Untrusted text: nodes of others are left out, an unknown road is passed over, and rows are rationed."""
    report(world, "observe-my-house")
    world.run(2)
    assert world.journal.incidents() == []
    for number in range(3 * REPORTS):
        report(world, "seat", f"i{number}", evict=("n2", "n6"), suspects=("n5",), mode="root")
        world.run(1)
    rows = world.journal.incidents()
    assert len(rows) == REPORTS
    assert {row.mode for row in rows} == {"observe"}
    verdicts = [row.incident.verdict for row in rows]
    assert all(verdict and [s.node for s in verdict.suspects] == ["n2"] for verdict in verdicts)
    assert all(row.incident.plan and row.incident.plan.evict == ("n2",) for row in rows)
    assert not [act for act in world.slurm.acts if not act.startswith("comment")]


def test_status_shows_a_suspicion_and_who_waits_in_the_queue(world: World) -> None:
    """A requeued job is no running one, and must not vanish from the on-call's sight."""
    job = world.slurm.state.jobs[1]
    assert published(world.daemon)["jobs"] == []
    world.claim(1, (), state="watching", suspected_at_s=world.slurm.now_s - 3)
    world.run(2)
    (shown,) = published(world.daemon)["jobs"]
    assert shown["suspected_at_s"] < world.slurm.now_s
    comment = world.slurm.state.jobs[1].comment
    far = int(world.slurm.now_s) + 9999
    world.slurm.state.jobs[1] = replace(job, state="PENDING", nodes=(), comment=comment, reason="Hold", start_at_s=far)
    world.run(2)
    (waits,) = published(world.daemon)["waiting"]
    assert (waits["job"], waits["reason"]) == ("1", "Hold")
