"""The next step of a recovery, from what Slurm shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.core.model import Action, ActionKind, JobRef
from slurm_robust.policy.cluster.recovery_plan import CLAIM, NODE_FAULT, NODE_LOST, Recovery
from slurm_robust.policy.cluster.recovery_step import Do, Finish, GiveUp, KeepWaiting, next_step
from slurm_robust.policy.cluster.recovery_view import TRIED_S, View, fit_again, shown, wanted
from slurm_robust.slurm.client import Job, Node, Reservation

R = Recovery(
    CLAIM,
    JobRef(1),
    "ann",
    0,
    bad=("n2",),
    kept=("n1",),
    standby=("n4",),
    seat="srobust-seat-1",
    exclude="n2",
    actions=(
        Action(ActionKind.QUARANTINE, "n2", "srobust: suspect"),
        Action(ActionKind.CREATE_SEAT, "srobust-seat-1", "hold"),
        Action(ActionKind.ANSWER, "1", "hangs", {"state": "accepted", "incident": "i"}),
        Action(ActionKind.REQUEUE, "1", "hangs"),
        Action(ActionKind.POINT_JOB_AT_SEAT, "1", "point"),
        Action(ActionKind.LEAVE_SEAT, "1", "leave"),
        Action(ActionKind.DELETE_SEAT, "srobust-seat-1", "done"),
    ),
)
SEAT = {"srobust-seat-1": Reservation("srobust-seat-1", "n[1,4]", end_at_s=1000)}
HELD = {**SEAT, "srobust-quarantine-n2": Reservation("srobust-quarantine-n2", "n2", end_at_s=1000)}
NODES = {f"n{i}": Node(f"n{i}", "ALLOCATED") for i in range(1, 5)}
JOB = Job(JobRef(1), "RUNNING", "ann", 1000, "main", nodes=("n1", "n2"), num_nodes=2)
PENDING = replace(JOB, state="PENDING", nodes=(), restart_count=1, reason="BeginTime")
VIEW = View(JOB, {}, NODES, in_quarantine=frozenset(("n2",)))
REQUEUED = frozenset((ActionKind.REQUEUE,))
POINTED = REQUEUED | {ActionKind.POINT_JOB_AT_SEAT}


def kind(view: View, r: Recovery = R) -> str:
    """The kind of the step: an action's, or what else it is."""
    step = next_step(r, view)
    if isinstance(step, Do):
        return step.action.kind.value
    return type(step).__name__ + (f" {step.outcome}" if isinstance(step, (Finish, GiveUp)) else "")


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        (VIEW, "quarantine"),
        (replace(VIEW, reservations={"srobust-quarantine-n2": HELD["srobust-quarantine-n2"]}), "create_seat"),
        (replace(VIEW, reservations=HELD), "answer"),
        (replace(VIEW, reservations=HELD, answered="accepted"), "requeue"),
        (replace(VIEW, reservations=HELD, answered="accepted", withdrawn=True), "GiveUp aborted"),
        (replace(VIEW, reservations=HELD, now_s=990), "create_seat"),
        (replace(VIEW, job=replace(JOB, completing=True), reservations=SEAT), "KeepWaiting"),
        (replace(VIEW, job=PENDING, reservations=HELD), "GiveUp aborted"),
        (replace(VIEW, job=PENDING, reservations=HELD, called=REQUEUED), "point_job_at_seat"),
        (replace(VIEW, job=PENDING, reservations=HELD, called=REQUEUED, settled=False), "KeepWaiting"),
        (replace(VIEW, job=PENDING, reservations={}, called=REQUEUED, in_quarantine=frozenset()), "create_seat"),
        (replace(VIEW, job=PENDING, reservations=HELD, called=REQUEUED, pointed_s=121), "GiveUp not_started"),
        (replace(VIEW, job=replace(PENDING, reason="JobHeldUser"), called=REQUEUED), "GiveUp aborted"),
        (replace(VIEW, job=replace(PENDING, state="SPECIAL_EXIT"), called=POINTED), "GiveUp aborted"),
        (replace(VIEW, job=replace(PENDING, state="REQUEUE_HOLD"), called=POINTED), "GiveUp aborted"),
        (replace(VIEW, job=replace(JOB, restart_count=1, reservation=R.seat), reservations=SEAT), "leave_seat"),
        (replace(VIEW, job=replace(JOB, restart_count=1), reservations=SEAT), "delete_seat"),
        (replace(VIEW, job=replace(JOB, state="STOPPED", restart_count=1), reservations=SEAT), "delete_seat"),
        (replace(VIEW, job=replace(JOB, state="STOPPED"), reservations=HELD, answered="accepted"), "requeue"),
        (replace(VIEW, job=replace(JOB, restart_count=1)), "Finish running"),
        (replace(VIEW, job=replace(JOB, state="CANCELLED"), reservations=SEAT), "delete_seat"),
        (replace(VIEW, job=None), "Finish ended"),
        (replace(VIEW, abort="no", reservations=HELD, answered="accepted"), "delete_seat"),
        (replace(VIEW, abort="no", answered="accepted"), "answer"),
        (replace(VIEW, abort="no", answered="refused"), "Finish aborted"),
        (replace(VIEW, age_s=4000), "GiveUp aborted"),
    ],
)
def test_ladder(view: View, wanted: str) -> None:
    """Each sight of Slurm has exactly one next step."""
    assert kind(view) == wanted


def test_only_what_slurm_shows_is_told_as_done() -> None:
    """A seat is there once its reservation holds the nodes of the plan; the end names the nodes that the job got."""
    create = R.actions[1]
    other = {R.seat: replace(SEAT[R.seat], nodes="n[1,3]")}
    assert not shown(R, create, replace(VIEW, reservations=other))
    assert shown(R, create, replace(VIEW, reservations=SEAT))
    elsewhere = replace(JOB, restart_count=1, nodes=("n1", "n3"))
    text = "the job runs again, on n[1,3], outside its seat, which is n[1,4]"
    assert next_step(R, replace(VIEW, job=elsewhere)) == Finish("running", text, unplanned=True)
    planned = replace(elsewhere, nodes=("n1", "n4"))
    assert next_step(R, replace(VIEW, job=planned)) == Finish("running", "the job runs again, on n[1,4]")


def test_set_down_only_a_lone_suspect_without_other_jobs() -> None:
    """A node that holds up the end: not while survivors end too, not with another's job, not a person's drain."""
    ending = replace(JOB, state="COMPLETING", completing=True, nodes=("n2",), restart_count=1)
    view = replace(VIEW, job=ending, reservations=SEAT, alone_s=5.0, completing_s=5.0)
    assert kind(view) == "set_down"
    assert kind(replace(view, alone_s=1.0)) == "KeepWaiting"
    assert kind(replace(view, job=replace(ending, nodes=("n1", "n2")))) == "KeepWaiting"
    assert kind(replace(view, occupied=frozenset(("n2",)))) == "KeepWaiting"
    assert kind(replace(view, may_take_out=False)) == "KeepWaiting"
    theirs = replace(NODES["n2"], flags=frozenset(("DRAIN",)), reason="fan")
    assert kind(replace(view, nodes={**NODES, "n2": theirs})) == "KeepWaiting"
    left_over = replace(NODES["n2"], reason="fan")
    assert kind(replace(view, nodes={**NODES, "n2": left_over})) == "set_down"


def test_a_survivor_that_falls_silent_is_given_time() -> None:
    """Its slurmd may be starting anew: it is set DOWN only when it holds up the end for as long as an end may take."""
    ending = replace(JOB, state="COMPLETING", completing=True, nodes=("n1",), restart_count=1)
    silent = {**NODES, "n1": replace(NODES["n1"], flags=frozenset(("NOT_RESPONDING",)))}
    view = replace(VIEW, job=ending, nodes=silent, reservations=SEAT, alone_s=5.0, completing_s=5.0)
    assert kind(view) == "KeepWaiting"
    assert kind(replace(view, alone_s=46.0)) == "set_down"
    both = replace(view, job=replace(ending, nodes=("n1", "n2")))
    step = next_step(R, both)
    assert isinstance(step, Do)
    assert (step.action.kind, step.action.target) == (ActionKind.SET_DOWN, "n2")


def test_node_lost() -> None:
    """The seat is held while the node is silent, and let go when it answers; nothing is shortened for other reasons."""
    r = replace(R, kind=NODE_LOST, actions=R.actions[1:2] + R.actions[4:])
    silent = {**NODES, "n2": replace(NODES["n2"], flags=frozenset(("NOT_RESPONDING",)))}
    down = {**NODES, "n2": replace(NODES["n2"], state="DOWN", reason="Not responding")}
    assert kind(replace(VIEW, nodes=silent), r) == "create_seat"
    assert kind(replace(VIEW, nodes=silent, reservations=SEAT), r) == "KeepWaiting"
    assert kind(replace(VIEW, reservations=SEAT), r) == "delete_seat"
    assert kind(VIEW, r) == "Finish came_back"
    begun = {name: replace(node, state="UNKNOWN") for name, node in NODES.items()}
    assert kind(replace(VIEW, nodes=begun, reservations=SEAT), r) == "KeepWaiting", "slurmctld was started again"
    assert kind(replace(VIEW, nodes=down, lost_s=20), r) == "Finish went_on"
    assert kind(replace(VIEW, job=PENDING, nodes=down, reservations=SEAT), r) == "drain"
    drained = {**NODES, "n2": replace(down["n2"], flags=frozenset(("DRAIN",)), reason="srobust: stopped")}
    assert kind(replace(VIEW, job=PENDING, nodes=drained, reservations=SEAT), r) == "point_job_at_seat"
    assert kind(replace(VIEW, job=PENDING, reservations=SEAT), r) == "GiveUp aborted"


POINT = Action(ActionKind.POINT_JOB_AT_SEAT, "1", "point", {"exclude": "n[2-3]", "reservation": R.seat})
SHORT = replace(R, standby=(), exclude="n[2-3]", own_exclude="n3", actions=(*R.actions[:4], POINT, *R.actions[5:]))
SMALL = {R.seat: Reservation(R.seat, "n1", users=("root",), end_at_s=1000)}
OUTSIDE = replace(PENDING, reservation="", exclude="n[2-3]", reason="Resources")
TOO_FEW = replace(VIEW, job=OUTSIDE, reservations={**HELD, **SMALL}, called=POINTED, pointed_s=TRIED_S)


def test_job_is_let_into_a_seat_with_fewer_nodes_for_a_moment() -> None:
    """Slurm alone knows whether they are enough (`-N2-4`); if the job does not start, the seat is closed again."""
    first = next_step(SHORT, replace(TOO_FEW, pointed_s=0, called=frozenset((ActionKind.REQUEUE,))))
    assert isinstance(first, Do)
    assert (first.action.kind, first.action.args["user"]) == (ActionKind.POINT_JOB_AT_SEAT, "ann")
    open_seat = replace(SMALL[R.seat], users=("ann",), flags=frozenset(("PURGE_COMP=00:03:00",)))
    inside = replace(TOO_FEW, job=replace(OUTSIDE, reservation=R.seat), reservations={**HELD, R.seat: open_seat})
    assert kind(replace(inside, pointed_s=1), SHORT) == "KeepWaiting"
    assert kind(inside, SHORT) == "leave_seat"
    assert kind(replace(inside, job=OUTSIDE), SHORT) == "delete_seat"


def test_nodes_that_others_use_or_reserved_complete_no_seat() -> None:
    """A suspect may have got another job since, or a reservation of the site; idle nodes come first."""
    back = replace(TOO_FEW, in_quarantine=frozenset(), reservations=SMALL)
    assert wanted(SHORT, back) == ("n1", "n2")
    assert wanted(SHORT, replace(back, spare=("n4",))) == ("n1", "n4")
    site = Reservation("site", "n2", users=("root",), end_at_s=1000)
    for taken in ({"occupied": frozenset(("n2",))}, {"reservations": {**SMALL, "site": site}}):
        assert wanted(SHORT, replace(back, **taken)) == ("n1",)  # type: ignore[arg-type]
        assert wanted(replace(SHORT, own_reservation="team"), replace(back, **taken)) == ("n1",)  # type: ignore[arg-type]
    own = replace(back, reservations={**SMALL, "site": site})
    assert wanted(replace(SHORT, own_reservation="team,site"), own) == ("n1", "n2"), "the job's own"


def test_a_seat_never_gets_more_nodes_than_the_job_had() -> None:
    """Its user may write another number while it waits."""
    asks = replace(TOO_FEW, job=replace(OUTSIDE, num_nodes=4), spare=("n4", "n5", "n6"))
    nodes = {**NODES, **{name: Node(name, "IDLE") for name in ("n5", "n6")}}
    assert wanted(replace(SHORT, size=2), replace(asks, nodes=nodes)) == ("n1", "n4")


def test_a_job_that_names_two_reservations_leaves_the_seat() -> None:
    """Slurm takes a list, and shows it as it was written."""
    job = replace(PENDING, reservation=f"{R.seat},{R.seat}", exclude="n2")
    assert kind(replace(VIEW, job=job, called=POINTED, reservations=SEAT, abort="x")) == "leave_seat"


def test_job_waits_outside_a_seat_that_has_too_few_nodes_for_it() -> None:
    """Nobody is let into that seat, so that no other job of the user can use it; other nodes may suffice."""
    first = next_step(SHORT, replace(TOO_FEW, job=replace(OUTSIDE, exclude="")))
    assert isinstance(first, Do)
    assert (first.action.kind, first.action.args) == (ActionKind.POINT_JOB_AT_SEAT, {"exclude": "n[2-3]"})
    assert kind(TOO_FEW, SHORT) == "KeepWaiting"


def test_a_seat_on_nodes_that_another_job_shares_does_not_keep_its_own_job_out() -> None:
    """Where jobs share nodes it holds nothing free: outside it, its job could start beside the other one at once."""
    shared = replace(TOO_FEW, occupied=frozenset(("n1", "n2")), in_quarantine=frozenset())
    assert kind(shared, SHORT) == "delete_seat"
    gone = replace(shared, reservations={})
    assert kind(gone, SHORT) == "lift_exclude"
    assert kind(replace(gone, job=replace(OUTSIDE, exclude="n3")), SHORT) == "KeepWaiting"


@pytest.mark.parametrize(
    ("change", "nodes", "exclude"),
    [
        ({"in_quarantine": frozenset(), "reservations": SMALL}, "n[1-2]", "n3"),
        ({"spare": ("n4", "n3")}, "n[1,4]", "n[2-3]"),
    ],
)
def test_seat_is_completed_with_a_suspect_that_came_back_or_a_free_node(
    change: dict[str, Any], nodes: str, exclude: str
) -> None:
    """Then the user is let in, as into any other seat; what the seat has stays in it."""
    view = replace(TOO_FEW, **change)
    grows = next_step(SHORT, view)
    assert isinstance(grows, Do)
    assert (grows.action.kind, grows.action.args["nodes"]) == (ActionKind.CREATE_SEAT, nodes)
    grown = {**view.reservations, R.seat: replace(SMALL[R.seat], nodes=nodes)}
    opens = next_step(SHORT, replace(view, reservations=grown, spare=()))
    assert isinstance(opens, Do)
    assert opens.action.kind is ActionKind.POINT_JOB_AT_SEAT
    assert (opens.action.args["exclude"], opens.action.args["user"]) == (exclude, "ann")


def test_node_of_a_seat_that_goes_down_is_replaced() -> None:
    """The seat holds the job to its nodes, so it may not wait for one that is out of service."""
    nodes = {**NODES, "n4": replace(NODES["n4"], state="DOWN"), "n5": Node("n5", "IDLE")}
    job = replace(PENDING, reservation=R.seat, exclude="n2", reason="Resources")
    view = replace(VIEW, job=job, called=POINTED, nodes=nodes, reservations={**HELD, **SEAT})
    assert kind(view) == "KeepWaiting"
    grows = next_step(R, replace(view, spare=("n5",)))
    assert isinstance(grows, Do)
    assert (grows.action.kind, grows.action.args["nodes"]) == (ActionKind.CREATE_SEAT, "n[1,4-5]")


def test_suspects_are_given_back_where_the_seat_is_too_small() -> None:
    """Only with nothing against them any more, never the user's own, and not where the seat has all that is needed."""
    short, job = SHORT, replace(OUTSIDE, num_nodes=3)
    view = replace(TOO_FEW, job=job, reservations=SMALL, in_quarantine=frozenset())
    step = next_step(short, view)
    assert isinstance(step, Do)
    assert (step.action.kind, step.action.args) == (ActionKind.LIFT_EXCLUDE, {"exclude": "n3"})
    assert not shown(short, step.action, view)
    assert shown(short, step.action, replace(view, job=replace(job, exclude="n3")))
    # Once given back, it is not left out again.
    assert kind(replace(view, job=replace(job, exclude="n3")), short) == "KeepWaiting"
    assert kind(replace(view, in_quarantine=frozenset(("n2",)), reservations={**HELD, **SMALL}), short) == "KeepWaiting"
    for wrong in ({"flags": frozenset(("DRAIN",))}, {"state": "DOWN"}):
        nodes = {**NODES, "n2": replace(NODES["n2"], **wrong)}  # type: ignore[arg-type]
        assert not fit_again(("n2",), nodes, frozenset())
    assert fit_again(("n2",), {"n2": replace(NODES["n2"], reason="fan")}, frozenset())  # of an older drain
    enough = replace(view, job=replace(OUTSIDE, reservation=R.seat, num_nodes=2), reservations={**SEAT})
    assert kind(enough, replace(short, standby=("n4",))) == "KeepWaiting"


states = st.sampled_from(["RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "CONFIGURING", "FAILED", "PREEMPTED", "X"])


@given(
    st.builds(
        View,
        job=st.none()
        | st.builds(
            replace,
            st.just(JOB),
            state=states,
            completing=st.booleans(),
            restart_count=st.integers(0, 2),
            reservation=st.sampled_from(["", R.seat, "team"]),
            reason=st.sampled_from(["", "BeginTime", "Resources", "JobHeldAdmin"]),
        ),
        reservations=st.sampled_from([{}, SEAT, HELD]),
        nodes=st.just(NODES),
        called=st.sampled_from([frozenset(), REQUEUED]),
        abort=st.sampled_from(["", "given up"]),
        answered=st.sampled_from(["", "accepted", "refused"]),
        alone_s=st.floats(0, 100),
        pointed_s=st.floats(0, 200),
        age_s=st.floats(0, 4000),
        settled=st.booleans(),
        withdrawn=st.booleans(),
    )
)
def test_never_finished_with_something_left(view: View) -> None:
    """Whatever Slurm shows: a recovery ends only with its seat gone, and a requeue comes only after seat and answer."""
    step = next_step(R, view)
    if isinstance(step, Finish):
        assert R.seat not in view.reservations
        assert view.job is None or view.job.reservation != R.seat or view.job.state in ("FAILED", "PREEMPTED")
    if isinstance(step, Do) and step.action.kind is ActionKind.REQUEUE:
        assert R.seat in view.reservations
        assert view.answered == "accepted"
    assert isinstance(step, (Do, KeepWaiting, GiveUp, Finish))


@given(st.integers(1, 10), st.floats(0, 600))
def test_a_seat_is_renewed_late_enough_to_be_short(seat_min: int, left_s: float) -> None:
    """A fresh seat is never renewed, also where the site made it one minute long; one that ends soon is, in time."""
    r = replace(R, seat_min=seat_min)
    left_s = min(left_s, seat_min * 60)
    seat = {R.seat: replace(SEAT[R.seat], end_at_s=left_s)}  # type: ignore[arg-type]
    step = kind(replace(VIEW, job=replace(PENDING, reservation=R.seat, exclude="n2", reason=""), reservations=seat,
                        called=POINTED, in_quarantine=frozenset()), r)  # fmt: skip
    if left_s > min(60, seat_min * 30):
        assert step == "KeepWaiting"
    if left_s < 10:
        assert step == "create_seat"


def test_a_job_whose_node_marked_a_fault_is_requeued_without_an_answer() -> None:
    """Nobody asked, so nobody is answered, and what the job's wrapper says later takes nothing back."""
    drain = Action(ActionKind.DRAIN, "n2", "srobust: XID 79")
    r = replace(R, kind=NODE_FAULT, actions=(drain, *R.actions[1:2], *R.actions[3:]))
    view = replace(VIEW, in_quarantine=frozenset(), withdrawn=True)
    assert kind(view, r) == "drain"
    out = {**NODES, "n2": replace(NODES["n2"], flags=frozenset({"DRAIN"}), reason="srobust: XID 79")}
    assert kind(replace(view, nodes=out), r) == "create_seat"
    # A node that stays in service is not left: the next job would start there. Unless a person has resumed it.
    assert kind(replace(view, may_take_out=False), r) == "GiveUp aborted"
    assert kind(replace(view, may_take_out=False, nodes=out), r) == "create_seat"
    assert kind(replace(view, was_drained=frozenset({"n2"})), r) == "create_seat"
    assert kind(replace(view, nodes=out, reservations=SEAT), r) == "requeue"
    pending = replace(view, nodes=out, reservations=SEAT, job=PENDING)
    assert kind(replace(pending, called=REQUEUED), r) == "point_job_at_seat"
    assert kind(pending, r) == "GiveUp aborted"
