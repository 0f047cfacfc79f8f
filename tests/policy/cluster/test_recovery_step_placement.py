"""Where a requeued job may start: set with the requeue, set again where it is not so, compared with where it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_robust.core.model import Action, ActionKind, JobRef
from slurm_robust.policy.cluster.recovery_plan import CLAIM, NODE_LOST, OWNER, Recovery
from slurm_robust.policy.cluster.recovery_step import LATER_S, SOON_S, Do, GiveUp, KeepWaiting, Step, next_step
from slurm_robust.policy.cluster.recovery_view import View, outside, shown
from slurm_robust.slurm.client import Job, Node, Reservation

POINT = {"exclude": "n2", "reservation": "srobust-seat-1", "time_limit_min": 60}
R = Recovery(
    CLAIM,
    JobRef(1),
    "ann",
    0,
    bad=("n2",),
    kept=("n1",),
    standby=("n4",),
    seat="srobust-seat-1",
    open_until_s=9e9,
    exclude="n2",
    actions=(
        Action(ActionKind.REQUEUE, "1", "hangs"),
        Action(ActionKind.POINT_JOB_AT_SEAT, "1", "point", POINT),
    ),
)
SEAT = {R.seat: Reservation(R.seat, "n[1,4]", end_at_s=1000)}
NODES = {f"n{i}": Node(f"n{i}", "ALLOCATED") for i in range(1, 5)}
JOB = Job(JobRef(1), "RUNNING", "ann", 1000, "main", nodes=("n1", "n2"), num_nodes=2)
ENDING = replace(JOB, state="COMPLETING", completing=True, restart_count=1)
PENDING = replace(JOB, state="PENDING", nodes=(), restart_count=1, reason="BeginTime")
VIEW = View(JOB, SEAT, NODES, answered="accepted")
REQUEUED = frozenset((ActionKind.REQUEUE,))
POINTED = REQUEUED | {ActionKind.POINT_JOB_AT_SEAT}


def done(step: Step) -> Action:
    """The action of a step that has one."""
    assert isinstance(step, Do)
    return step.action


@pytest.mark.parametrize("pause_s", [0, 2])
def test_requeued_job_waits_until_it_is_let_into_its_seat(pause_s: int) -> None:
    """Its seat is open to nobody yet, since Slurm would let in every job of the user; it could start nowhere else."""
    action = done(next_step(R, replace(VIEW, pause_s=pause_s)))
    assert action.kind is ActionKind.REQUEUE
    assert action.args == {"exclude": "n2", "time_limit_min": 60, "start_in_s": LATER_S}
    starts = done(next_step(R, replace(VIEW, job=replace(PENDING, exclude="n2"), called=REQUEUED)))
    assert (starts.kind, starts.args) == (ActionKind.POINT_JOB_AT_SEAT, {**POINT, "user": "ann", "open_until_s": 9e9})
    closed = {R.seat: replace(SEAT[R.seat], users=("root",))}
    there = replace(PENDING, exclude="n2", reservation=R.seat, reason="Reservation")
    again = next_step(R, replace(VIEW, job=there, reservations=closed, called=POINTED))
    assert done(again).args == starts.args, "a seat that was made anew is opened again"


def test_a_seat_that_another_job_takes_is_given_up_and_left_by_all() -> None:
    """First it is closed, since its user could submit faster than jobs are taken out; it then ends within a minute.

    What waits in it is only taken out of it; a job that was there before the seat did not come through it.
    """
    other = Job(JobRef(2), "RUNNING", "ann", 1000, "main", nodes=("n4",), reservation=R.seat, start_at_s=5)
    view = replace(VIEW, job=replace(PENDING, exclude="n2"), called=POINTED, others=(other,))
    step = next_step(R, view)
    assert isinstance(step, GiveUp)
    assert "job 2 has started in its seat" in step.reason
    closes = done(next_step(R, replace(view, abort=step.reason)))
    assert (closes.kind, closes.target, closes.args) == (ActionKind.DELETE_SEAT, R.seat, {"close": True})
    closed = {
        R.seat: replace(SEAT[R.seat], end_at_s=60, users=("root",), flags=frozenset(("FLEX", "PURGE_COMP=00:03:00")))
    }
    view = replace(view, reservations=closed)
    waits = replace(view, others=(replace(other, state="PENDING"),))
    assert done(next_step(R, waits)).target == "2", "it is not opened again, since it is FLEX"
    leaves = done(next_step(R, replace(view, abort=step.reason)))
    assert (leaves.kind, leaves.target, leaves.args) == (ActionKind.LEAVE_SEAT, "2", {"reservation": ""})
    part = replace(other, hetjob_id=2)
    assert isinstance(next_step(R, replace(view, abort=step.reason, others=(part,))), KeepWaiting), "Slurm refuses it"
    alone = next_step(R, replace(view, abort=step.reason, others=()))
    assert done(alone).kind is ActionKind.DELETE_SEAT
    rest = replace(other, state="PENDING", ref=JobRef(9, array_job_id=9), start_at_s=0)
    leaves = done(next_step(R, replace(view, abort=step.reason, others=(rest,))))
    assert (leaves.target, leaves.args) == ("9", {"reservation": "", "rest": True}), "not the array's tasks that run"
    for innocent in (replace(other, state="PENDING"), replace(other, start_at_s=-1)):
        assert not isinstance(next_step(R, replace(view, others=(innocent,))), GiveUp)
    again = replace(JOB, restart_count=1, nodes=("n1", "n4"))
    assert done(next_step(R, replace(view, job=again))).target == "2"


def test_job_that_was_placed_with_its_requeue_is_woken_once() -> None:
    """Slurm's scheduler does not run because a start time has come; the call that has it run is made once."""
    there = {"reservation": R.seat, "exclude": "n2"}
    assert isinstance(next_step(R, replace(VIEW, job=replace(ENDING, **there), called=REQUEUED)), KeepWaiting)  # type: ignore[arg-type]
    job = replace(PENDING, reason="", **there)  # type: ignore[arg-type]
    view = replace(VIEW, job=job, called=REQUEUED)
    assert done(next_step(R, view)).kind is ActionKind.POINT_JOB_AT_SEAT
    assert shown(R, R.actions[1], view)
    assert isinstance(next_step(R, replace(view, settled=False)), KeepWaiting)
    assert isinstance(next_step(R, replace(view, called=POINTED)), KeepWaiting)


def test_job_that_ends_without_its_seat_is_pointed_before_it_has_ended() -> None:
    """Slurm refused it with the requeue, or requeued the job itself; a second refusal waits for the end."""
    action = done(next_step(R, replace(VIEW, job=ENDING, called=REQUEUED)))
    assert (action.kind, action.args["start_in_s"]) == (ActionKind.POINT_JOB_AT_SEAT, LATER_S)
    assert "reservation" not in action.args
    assert isinstance(next_step(R, replace(VIEW, job=ENDING, called=POINTED)), KeepWaiting)
    again = done(next_step(R, replace(VIEW, job=PENDING, called=POINTED)))
    assert (again.kind, "start_in_s" in again.args) == (ActionKind.POINT_JOB_AT_SEAT, False)


def test_job_that_others_requeue_is_not_pointed_while_it_ends() -> None:
    """A person's requeue, and one whose lost node is there again, are not ours to place."""
    assert isinstance(next_step(R, replace(VIEW, job=ENDING)), KeepWaiting)
    lost = replace(R, kind=NODE_LOST)
    assert isinstance(next_step(lost, replace(VIEW, job=ENDING)), KeepWaiting)
    down = {**NODES, "n2": replace(NODES["n2"], state="DOWN")}
    assert done(next_step(lost, replace(VIEW, job=ENDING, nodes=down))).kind is ActionKind.POINT_JOB_AT_SEAT
    assert isinstance(next_step(lost, replace(VIEW, job=replace(ENDING, restart_count=0), nodes=down)), KeepWaiting)


def test_owners_recovery_has_exclusions_alone() -> None:
    """It has no seat to be in, and keeps the job's own reservation."""
    r = replace(R, kind=OWNER, seat="", actions=(R.actions[0], replace(R.actions[1], args={"exclude": "n2"})))
    assert done(next_step(r, replace(VIEW, reservations={}))).args == {"exclude": "n2", "start_in_s": SOON_S}
    placed = replace(PENDING, exclude="n2", reason="Priority", reservation="team")
    assert isinstance(next_step(r, replace(VIEW, job=placed, called=POINTED)), KeepWaiting)
    assert done(next_step(r, replace(VIEW, job=PENDING, called=POINTED))).kind is ActionKind.POINT_JOB_AT_SEAT


def test_where_a_job_runs_is_compared_with_its_seat() -> None:
    """A suspect that it was to leave, a node outside of its seat; a seat that was too small holds it to none."""
    assert outside(R, replace(JOB, nodes=("n1", "n4"))) == ""
    assert outside(R, replace(JOB, nodes=("n1", "n2"))) == "although it was to leave n2 out"
    assert outside(R, replace(JOB, nodes=("n1", "n3"))) == "outside its seat, which is n[1,4]"
    assert outside(replace(R, standby=()), replace(JOB, nodes=("n1", "n3"))) == ""
    assert outside(replace(R, seat="", kind=OWNER), replace(JOB, nodes=("n1", "n3"))) == ""
