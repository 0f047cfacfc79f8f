"""Who may claim what, and the plan that follows: all of it without Slurm."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.site import Config, parse
from slurm_robust.core.model import Action, ActionKind, JobRef, Road
from slurm_robust.marks.claim import Claim
from slurm_robust.policy.cluster.node_states import Cluster
from slurm_robust.policy.cluster.recovery_plan import (
    CLAIM,
    SEAT_FLAGS,
    Recovery,
    RecoveryRequest,
    Refusal,
    Usage,
    check_claim,
    plan,
    plan_owner,
)
from slurm_robust.policy.cluster.recovery_step import Do, next_step
from slurm_robust.policy.cluster.recovery_view import View
from slurm_robust.slurm.client import Job, Node, Reservation

NOW_S = 1_000_000.0
CONFIG = Config()


def node(name: str, **more: object) -> Node:
    """A healthy node."""
    return replace(Node(name, "IDLE", partitions=("main",), gres="gpu:8"), **more)  # type: ignore[arg-type]


def cluster(*reservations: Reservation, **changed: Node) -> Cluster:
    """Six nodes; n1 to n3 run job 1."""
    nodes = {f"n{i}": node(f"n{i}", state="ALLOCATED" if i < 4 else "IDLE") for i in range(1, 7)}
    return Cluster({**nodes, **changed}, (job(),), reservations)


def job(**more: object) -> Job:
    """Job 1 of ann, on n1 to n3, an hour of four used."""
    base = Job(JobRef(1), "RUNNING", "ann", 1000, "main", nodes=("n1", "n2", "n3"), num_nodes=3)
    base = replace(base, start_at_s=int(NOW_S) - 3600, time_limit_s=4 * 3600)
    return replace(base, **more)  # type: ignore[arg-type]


def planned(
    j: Job, evict: tuple[str, ...], c: Cluster, config: Config = CONFIG, suspects_to: str = "quarantine"
) -> Recovery:
    """A plan, which must not be a refusal."""
    made = plan(RecoveryRequest(CLAIM, j, evict, "hangs", suspects_to=suspects_to), c, config, NOW_S)
    assert isinstance(made, Recovery), made
    return made


@pytest.mark.parametrize(
    ("change", "claim", "words"),
    [
        ({"state": "PENDING"}, {}, "not running"),
        ({"completing": True}, {}, "not running"),
        ({"restart_count": 1}, {}, "attempt 0"),
        ({"hetjob_id": 4}, {}, "het"),
        ({"requeueable": False}, {}, "--no-requeue"),
        ({}, {"evict": ("n1", "n9")}, "n9"),
    ],
)
def test_claims_that_may_not_stand(change: dict[str, object], claim: dict[str, object], words: str) -> None:
    """Each is refused whole, with a reason that names what is wrong."""
    said = replace(Claim("wants", "l", incident="i", evict=("n1",)), **claim)  # type: ignore[arg-type]
    refusal = check_claim(job(**change), said, Usage(), CONFIG)
    assert refusal is not None
    assert words in refusal.reason


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (Usage(active=32), "max_active"),
        (Usage(user_fruitless=20), "brought no new step within a day, and seat.max_per_user_day is 20"),
        (Usage(user_day=100), "5 times seat.max_per_user_day"),
        (Usage(user_day=140, user_nodes=2049), "5 times seat.max_per_user_day"),
        (Usage(job_day=8), "max_per_job_day"),
        (Usage(job_day=49, job_nodes=2099), "max_per_job_day"),
        (Usage(job_fruitless=3), "supervise.fruitless_attempts"),
    ],
)
def test_caps(usage: Usage, words: str) -> None:
    """At the cap the claim is refused, and the reason names the setting; one below it stands."""
    said = Claim("wants", "l", incident="i", evict=("n1",))
    refusal = check_claim(job(), said, usage, CONFIG)
    assert refusal is not None
    assert words in refusal.reason
    nodes = {"user_nodes": usage.user_nodes, "job_nodes": usage.job_nodes}
    below = replace(Usage(*(max(0, count - 1) for count in astuple(usage)[:-1])), **nodes)
    assert check_claim(job(), said, below, CONFIG) is None


def test_a_user_who_is_barred_makes_no_claims() -> None:
    """The refusal says why."""
    refusal = check_claim(job(), Claim("wants", "l", incident="i", evict=("n1",)), Usage(barred="job 7 did"), CONFIG)
    assert refusal is not None
    assert refusal.reason == "job 7 did"


def test_order_of_the_plan() -> None:
    """The suspect aside, the seat, the answer, the requeue, one update, running, left, deleted, the recheck."""
    made = planned(job(exclude="n9"), ("n2",), cluster())
    assert [a.kind.value for a in made.actions] == [
        "quarantine",
        "create_seat",
        "answer",
        "requeue",
        "point_job_at_seat",
        "wait_running",
        "leave_seat",
        "delete_seat",
        "recheck",
    ]
    assert (made.kept, made.standby, made.exclude, made.plan.road) == (("n1", "n3"), ("n4",), "n[2,9]", Road.SEAT)
    # What was left of the time limit, not the whole of it again.
    assert made.time_limit_min == 180
    assert "MAGNETIC" not in SEAT_FLAGS


def test_standby_first_same_kind_only() -> None:
    """A pool member is taken before a free node; another kind of hardware never; a node held by others never."""
    pool = Reservation("srobust-standby-main-x", "n6", start_at_s=1, end_at_s=int(NOW_S) + 9999)
    team = Reservation("team", "n5", start_at_s=1, end_at_s=int(NOW_S) + 9999)
    small = node("n4", gres="gpu:4")
    c = cluster(pool, team, n4=small, n6=node("n6", flags=frozenset(("RESERVED",))))
    assert planned(job(), ("n2",), c).standby == ("n6",)
    two = planned(job(), ("n2", "n3"), c)
    assert two.standby == ("n6",)
    assert "missing" in two.reason


def test_drained_survivors_are_left_out_and_not_touched() -> None:
    """A survivor that a person drained is not in the seat, and no action is about it."""
    c = cluster(n3=node("n3", state="ALLOCATED", flags=frozenset(("DRAIN",)), reason="fan"))
    made = planned(job(), ("n2",), c)
    assert made.seat_nodes == ("n1", "n4", "n5")
    assert "n3" not in [a.target for a in made.actions]


def test_a_slurmctld_that_has_just_begun_costs_a_job_no_node_but_the_lost_one() -> None:
    """It calls every node UNKNOWN until that has answered: the others of the job are kept, and nothing is refused."""
    unknown = {f"n{i}": node(f"n{i}", state="UNKNOWN") for i in range(1, 7)}
    made = planned(job(), ("n2",), cluster(**unknown))
    assert (made.kept, made.standby) == (("n1", "n3"), ())
    drained = {**unknown, "n3": node("n3", state="UNKNOWN", flags=frozenset(("DRAIN",)))}
    assert planned(job(), ("n2",), cluster(**drained)).kept == ("n1",)


def test_a_survivor_that_another_job_suspects_is_used_again_only_if_no_other_node_is_free() -> None:
    """It is in quarantine, and waits for this job's end to be checked."""
    quarantine = Reservation("srobust-quarantine-n3", "n3", start_at_s=1, end_at_s=int(NOW_S) + 999)
    made = planned(job(), ("n2",), cluster(quarantine))
    assert (made.kept, made.standby) == (("n1",), ("n4", "n5"))
    down = {name: node(name, state="DOWN") for name in ("n4", "n5")}
    made = planned(job(), ("n2",), cluster(quarantine, **down))
    assert (made.kept, made.standby) == (("n1", "n3"), ("n6",))
    assert "missing" not in made.reason
    made = planned(job(), ("n2",), cluster(quarantine, n6=node("n6", state="DOWN"), **down))
    assert (made.kept, made.standby) == (("n1", "n3"), ())
    assert "1 node(s) of the same kind are missing" in made.reason


def test_exclusions_of_earlier_recoveries_are_given_back() -> None:
    """n5 passed its recheck and n6 did not, n4 is still in quarantine, n9 is the user's: n5 alone comes back."""
    quarantine = Reservation("srobust-quarantine-n4", "n4", start_at_s=1, end_at_s=int(NOW_S) + 999)
    c = cluster(quarantine, n6=node("n6", flags=frozenset(("DRAIN",)), reason="srobust: xid"), n9=node("n9"))
    base = job(exclude="n[4-6,9]")
    earlier = frozenset(("n4", "n5", "n6", "n7"))
    made = plan(RecoveryRequest(CLAIM, base, ("n2",), "hangs", earlier=earlier), c, CONFIG, NOW_S)
    assert isinstance(made, Recovery)
    assert (made.own_exclude, made.exclude) == ("n9", "n[2,4,6,9]")
    assert made.standby == ("n5",)


def test_a_node_left_out_before_stands_in_after_all_others() -> None:
    """The job suspected it once: it is taken where nothing else is free."""
    made = plan(RecoveryRequest(CLAIM, job(exclude="n4"), ("n2",), "", earlier=frozenset(["n4"])), cluster(), CONFIG, 0)
    assert isinstance(made, Recovery)
    assert (made.standby, made.exclude, made.own_exclude) == (("n5",), "n2", "")


def test_foreign_suspect_is_only_excluded() -> None:
    """A suspect with a person's reason is excluded from the job; the node itself stays as it is."""
    c = cluster(n2=node("n2", state="ALLOCATED", flags=frozenset(("DRAIN",)), reason="fan"))
    made = planned(job(), ("n2",), c)
    assert made.exclude == "n2"
    assert "n2" not in [a.target for a in made.actions]


def test_windows() -> None:
    """A coming reservation lowers the time limit to what fits, or refuses with its name; one elsewhere is none."""
    flags = frozenset(("MAINT",))
    at_s = int(NOW_S)
    far = Reservation("window", "n[1-3]", flags=flags, start_at_s=at_s + 3660, end_at_s=at_s + 9999)
    assert planned(job(), ("n2",), cluster(far)).time_limit_min == 60
    near = replace(far, start_at_s=at_s + 300)
    refusal = plan(RecoveryRequest(CLAIM, job(), ("n2",), "hangs"), cluster(near), CONFIG, NOW_S)
    assert isinstance(refusal, Refusal)
    assert "window" in refusal.reason
    elsewhere = replace(near, nodes="n6")
    assert planned(job(), ("n2",), cluster(elsewhere)).time_limit_min == 180
    # A spare that the window does not touch is better than one that it does.
    assert planned(job(), ("n2",), cluster(replace(near, nodes="n4"))).standby == ("n5",)


def test_claims_drain() -> None:
    """`claims: drain` drains with the claim's words, and rechecks nothing."""
    made = planned(job(), ("n2",), cluster(), parse("quarantine: {claims: drain}"), suspects_to="drain")
    assert made.actions[0] == Action(ActionKind.DRAIN, "n2", "srobust: hangs")
    assert ActionKind.RECHECK not in {a.kind for a in made.actions}


def test_no_node_left() -> None:
    """All nodes suspected and none free: refused, nothing is stopped."""
    busy = {f"n{i}": node(f"n{i}", state="ALLOCATED") for i in range(4, 7)}
    c = cluster(**busy)
    made = plan(RecoveryRequest(CLAIM, job(), ("n1", "n2", "n3"), "x"), c, CONFIG, NOW_S)
    assert isinstance(made, Refusal)


def test_array_tasks_are_addressed_exactly() -> None:
    """Every action about the job carries ARRAYJOBID_TASKID; the seat is named after the task's own raw id."""
    made = planned(job(ref=JobRef(7, 5, 2)), ("n2",), cluster())
    assert made.seat == "srobust-seat-7"
    assert {a.target for a in made.actions} == {"5_2", "n2", "srobust-seat-7"}


def test_owner_has_no_rights() -> None:
    """The owner's own way holds no node and drains none."""
    made = plan_owner(job(exclude="n9", reservation="team"), ("n2",), "hangs")
    assert {a.kind for a in made.actions} == {
        ActionKind.REQUEUE,
        ActionKind.POINT_JOB_AT_SEAT,
        ActionKind.WAIT_RUNNING,
    }
    assert (made.exclude, made.plan.road, made.seat) == ("n[2,9]", Road.OWNER_REQUEUE, "")


names = st.sampled_from([f"n{i}" for i in range(1, 7)])
reasons = st.sampled_from(["", "srobust: XID 79", "fan", "Not responding", "SROBUST: no"])


@given(st.sets(names, max_size=3), st.dictionaries(names, st.tuples(st.booleans(), reasons), max_size=6))
def test_no_plan_and_no_step_touches_what_a_person_did(evict: set[str], states: dict[str, tuple[bool, str]]) -> None:
    """Whatever is claimed and however nodes stand: no action on what a person took out, only on the job's own."""
    changed = {
        name: node(name, flags=frozenset(("DRAIN",)) if drained else frozenset(), reason=reason)
        for name, (drained, reason) in states.items()
    }
    c = cluster(**changed)
    own = tuple(sorted(evict & {"n1", "n2", "n3"}))
    made = plan(RecoveryRequest(CLAIM, job(), own, "x"), c, CONFIG, NOW_S)
    if isinstance(made, Refusal):
        return
    theirs = {n for n, (drained, reason) in states.items() if drained and reason in ("fan", "SROBUST: no")}
    about_nodes = {ActionKind.QUARANTINE, ActionKind.DRAIN, ActionKind.SET_DOWN, ActionKind.RECHECK}
    targets = {a.target for a in made.actions if a.kind in about_nodes}
    assert not targets & theirs
    assert targets <= set(own)
    assert set(made.seat_nodes).isdisjoint(own)
    ending = job(state="COMPLETING", completing=True, nodes=own, restart_count=1)
    seat = {made.seat: Reservation(made.seat, ",".join(made.seat_nodes), end_at_s=int(NOW_S) + 999)}
    view = View(ending, seat, c.nodes, alone_s=999.0, completing_s=999.0, now_s=NOW_S)
    step = next_step(made, view)
    if isinstance(step, Do) and step.action.kind is ActionKind.SET_DOWN:
        assert step.action.target not in theirs


def test_a_job_may_have_several_reservations_of_its_own() -> None:
    """Slurm shows them as they were named: their nodes can replace a suspect, and the job gets all of them back."""
    own = Reservation("b", "n[3-4]", ("ann",), frozenset(("IGNORE_JOBS",)), int(NOW_S) + 1800, int(NOW_S) + 90000)
    down = {name: node(name, state="DOWN") for name in ("n5", "n6")}
    made = planned(job(reservation="a,b,srobust-seat-9"), ("n2",), cluster(own, **down))
    assert (made.own_reservation, made.time_limit_min, made.standby) == ("a,b", 180, ("n4",))
