"""decide with the ladder: which rung follows which."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ladder_situations import (
    ALIGNMENT,
    CODE,
    IN_NODE,
    NAN,
    NODES,
    OFFERED,
    PAIRS,
    REPLAY,
    after_tests,
    climb_to_the_end,
    crash,
    hang,
    next_incident,
)
from situations import UNDETERMINED, USER_CODE, culprit

from slurm_robust.core.model import Road
from slurm_robust.policy.job.code_versions import CodeState, PendingCode
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.ladder import Rung
from slurm_robust.policy.job.situation import JobFacts, Situation

ALL = replace(OFFERED, replay_possible=True)


def test_a_hang_climbs_from_the_few_to_the_stop() -> None:
    """Each rung says what follows, and the stop says what each has found."""
    plans = climb_to_the_end(hang(apart_nodes=("n13", "n14"), code=CODE, ladder_options=ALL))
    assert [p.rung for p in plans] == ["test_apart", "test", "reattempt", "other_code", "replay", "requeue", ""]
    apart, everywhere, again, older, replay, requeue, stop = plans
    assert apart.tests == everywhere.tests == (IN_NODE, PAIRS)
    assert apart.test_nodes == ("n01", "n02", "n03", "n13", "n14"), "with three partners"
    assert everywhere.test_nodes == replay.test_nodes == NODES
    assert replay.tests == (REPLAY,)
    assert (again.road, older.road, older.code) == (Road.RESTART_IN_PLACE, Road.RESTART_IN_PLACE, 1)
    assert requeue.road is Road.SEAT
    assert (stop.road, stop.exit_code) == (Road.STOP, 93)
    assert not any(p.evict for p in plans)
    for plan, follows in zip(
        plans,
        ["16 nodes", "the same again", "version 1 of the code", "a replay", "a requeue", "the job is stopped"],
        strict=False,
    ):
        assert follows in plan.reason.rpartition("; ")[2]
    for found in ("in-node and pairs on 5 nodes in 20 s: passed", "on 16 nodes", "version 1 of the code did not help"):
        assert found in stop.reason


@pytest.mark.parametrize(
    ("situation", "rungs"),
    [
        (hang(), ["test", "reattempt", "requeue", ""]),
        (hang(job=JobFacts(requeueable=False)), ["test", "reattempt", ""]),
        (crash(ladder_options=ALL), ["test", "reattempt", "replay", "requeue", ""]),
        (crash(code=CODE), ["test", "reattempt", "other_code", "requeue", ""]),
        (crash(code=replace(CODE, pending=PendingCode(3, "now", 0.0, "a"))), ["test", "reattempt", "requeue", ""]),
        (crash(code=replace(CODE, others=(crash().failure.signature,))), ["test", "reattempt", "requeue", ""]),
        (hang(resumes=None), ["test", "reattempt", ""]),
        (hang(ladder_options=replace(OFFERED, tests_per_day=0)), ["reattempt", "requeue", ""]),
        (hang(ladder_options=replace(ALL, tests=(ALIGNMENT,))), ["reattempt", "replay", "requeue", ""]),
        (crash(bad_loss=NAN, ladder_options=ALL), ["test", "test", "reattempt", "replay", ""]),
    ],
)
def test_rungs_that_are_not_possible_are_passed_over(situation: Situation, rungs: list[str]) -> None:
    """A requeue counts once, also where the same again was one; a known or waiting version is no older one."""
    plans = climb_to_the_end(situation)
    if situation.bad_loss is not None:
        assert plans[-2].roll_back, "what the rule for bad losses still has"
        plans = [*plans[:4], plans[-1]]
    assert [p.rung for p in plans] == rungs


def test_the_same_again_is_a_requeue_where_the_command_may_begin_from_zero() -> None:
    """The tests are made in the allocation before."""
    s = hang(resumes=False)
    plan = decide(s)
    assert plan.road is Road.TEST
    plan = decide(after_tests(s, plan))
    assert (plan.road, plan.rung) == (Road.SEAT, "reattempt")
    assert "runs the script again" in plan.reason


@pytest.mark.parametrize(
    ("situation", "nodes"),
    [
        (hang(verdict=culprit("n09", infrastructure=False)), ("n01", "n02", "n03", "n09")),
        (hang(apart_nodes=("n13", "elsewhere")), ("n01", "n02", "n03", "n13")),
        (hang(apart_nodes=NODES[8:13]), NODES[:5] + NODES[8:13]),
        (hang(apart_nodes=NODES[8:]), NODES),
        (crash(apart_nodes=("n13",)), NODES),
    ],
)
def test_what_stands_apart_is_tested_with_partners(situation: Situation, nodes: tuple[str, ...]) -> None:
    """As many others as there are, three at least; all at once where that is all, or where nothing stands."""
    plan = decide(situation)
    assert plan.test_nodes == nodes
    assert plan.rung == ("test" if nodes == NODES else "test_apart")


def test_few_nodes_are_tested_with_spares_or_without_pairs() -> None:
    """Two nodes leave pairs undecided; one has no pair."""
    two = hang(allocation_nodes=("n1", "n2", "n3"), training_nodes=("n1", "n2"), healthy_spares=("n3",))
    assert decide(two).test_nodes == ("n1", "n2", "n3")
    one = hang(allocation_nodes=("n1",), training_nodes=("n1",), training_node_count=1)
    assert (decide(one).tests, decide(one).test_nodes) == ((IN_NODE,), ("n1",))


def test_a_failed_node_is_left_and_the_climb_ends_there() -> None:
    """Though the same would be tried again otherwise; the group's failure spares the others the tests."""
    s = hang(apart_nodes=("n13",), healthy_spares=("n17",), allocation_nodes=(*NODES, "n17"))
    plan = decide(after_tests(s, decide(s), {"n13": "n13 fails pairs with n01, n02 and n03"}))
    assert (plan.road, plan.evict, plan.rung) == (Road.SPARE_IN_ALLOCATION, ("n13",), "")
    assert "n13 fails pairs" in plan.reason


def test_more_failed_nodes_than_half_share_a_cause() -> None:
    """None is left, and the climb goes on."""
    s = crash()
    plan = decide(after_tests(s, decide(s), {n: f"{n} fails in-node" for n in NODES[:9]}))
    assert (plan.road, plan.evict, plan.rung) == (Road.RESTART_IN_PLACE, (), "reattempt")
    assert "so none is left out" in plan.reason


def test_what_tests_could_not_tell_is_said_and_climbed_over() -> None:
    """As if they had passed."""
    s = crash()
    plan = decide(after_tests(s, decide(s), doubts=("n03 says nothing for ten seconds",)))
    assert plan.rung == "reattempt"
    assert "could not tell: n03 says nothing" in plan.reason
    assert "speaks against no node" in plan.reason


def test_a_bad_loss_is_aligned_first_and_goes_back_whoever_is_left() -> None:
    """NaN: alignment, then the node; training goes back to the checkpoint from before it, also by another road."""
    s = crash(bad_loss=NAN, verdict=USER_CODE)
    first = decide(s)
    assert first.tests == (ALIGNMENT,)
    plan = decide(after_tests(s, first, {"n05": "n05 computes other bits"}))
    assert (plan.road, plan.evict, plan.roll_back) == (Road.SEAT, ("n05",), True)
    second = decide(passed := after_tests(s, first))
    assert second.tests == (IN_NODE,)
    again = decide(after_tests(passed, second))
    assert (again.road, again.rung, again.roll_back) == (Road.RESTART_IN_PLACE, "reattempt", True)


def test_a_bad_loss_without_a_checkpoint_is_tested_and_then_the_programs_own() -> None:
    """The same start would lead to the same end."""
    s = crash(bad_loss=replace(NAN, healthy_step=-1), verdict=USER_CODE)
    plan = decide(s)
    while plan.road is Road.TEST:
        s = after_tests(s, plan)
        plan = decide(s)
    assert (plan.road, plan.exit_code) == (Road.STOP, 1)
    assert "The ladder: alignment on 16 nodes" in plan.reason


def test_tests_and_a_replay_are_made_at_the_limit_of_attempts() -> None:
    """They cost none. What they name is left; where they name nobody, the limit holds."""
    s = hang(fruitless=3, ladder_options=ALL)
    first = decide(s)
    assert first.rung == "test"
    s = after_tests(s, first)
    replay = decide(s)
    assert replay.rung == "replay", "the same again would be an attempt"
    assert decide(after_tests(s, replay, {"n04": "n04 is in both failing groups"})).evict == ("n04",)
    stop = decide(after_tests(s, replay))
    assert (stop.road, stop.exit_code) == (Road.STOP, 93)
    assert "3 attempts in a row without a new step" in stop.reason
    assert "replay on 16 nodes" in stop.reason


def test_another_symptom_goes_on_in_the_same_climb_with_its_own_tests() -> None:
    """A hang was tried again; a NaN is aligned, but not tried again."""
    s = hang()
    s = after_tests(s, decide(s))
    loss = next_incident(s, decide(s), ended=True, exit_code=1, bad_loss=NAN, code=CODE)
    plan = decide(loss)
    assert plan.tests == (ALIGNMENT,), "in-node was made"
    assert decide(after_tests(loss, plan)).rung == "other_code"


def test_a_settled_training_begins_at_the_bottom() -> None:
    """New steps alone are not enough, and time alone is not either."""
    s = hang()
    s = after_tests(s, decide(s))
    later = next_incident(s, decide(s))
    stepped = replace(later, ladder=later.ladder.made_step(100), fruitless=0)
    assert decide(stepped).rung == "requeue"
    assert decide(replace(later, now_s=later.now_s + 7200.0)).rung == "requeue"
    assert decide(replace(stepped, now_s=later.now_s + 7200.0)).rung == "test"


def test_a_training_that_fails_and_trains_is_not_requeued_in_each_climb() -> None:
    """Each time would cost it its nodes, or a seat of the day. One that makes no new step is requeued."""
    s = hang()
    s = after_tests(s, decide(s))
    s = next_incident(s, decide(s), fruitless=0)
    s = next_incident(s, decide(s))
    s = replace(s, ladder=s.ladder.made_step(100), now_s=s.now_s + 7200.0, fruitless=0)
    s = after_tests(s, decide(s))
    trains = next_incident(s, decide(s), fruitless=0)
    assert (decide(trains).road, decide(trains).rung) == (Road.RESTART_IN_PLACE, "")
    assert decide(replace(trains, fruitless=1)).rung == "requeue"
    assert decide(replace(trains, now_s=trains.now_s + 86400.0)).rung == "requeue"


def test_above_the_top_new_steps_keep_a_job_alive() -> None:
    """It trains between two failures: that is worth more than nothing."""
    s = hang(job=JobFacts(requeueable=False))
    s = after_tests(s, decide(s))
    top = next_incident(s, decide(s), fruitless=0)
    plan = decide(top)
    assert (plan.road, plan.rung) == (Road.RESTART_IN_PLACE, "")
    assert decide(replace(top, fruitless=1)).road is Road.STOP


def test_the_rule_of_versions_counts_as_the_rung_of_the_older_code() -> None:
    """It comes first where the version repeats a failure that no other had."""
    s = crash(code=CODE)
    s = after_tests(s, decide(s))
    again = next_incident(s, decide(s))
    plan = decide(replace(again, code=CODE.failed(again.failure)))
    assert (plan.code, plan.rung) == (1, "other_code")
    assert decide(crash(code=CodeState(in_force=2, proven=(1,)), verdict=USER_CODE)).road is Road.STOP


def test_a_slow_training_is_tested_and_never_stopped() -> None:
    """It is ended for the tests, so it is started again; after that it is left alone."""
    s = hang(action_limit_reached=False, slow="steps take 2.1 s instead of 1.0 s", failure=None)
    plan = decide(s)
    assert (plan.rung, plan.tests) == ("test", (PAIRS,))
    assert "2.1 s" in plan.reason
    after = after_tests(s, plan)
    again = decide(after)
    assert (again.road, again.rung) == (Road.RESTART_IN_PLACE, "reattempt")
    assert decide(next_incident(after, again)).road is Road.ALERT_ONLY
    bare = replace(after, job=JobFacts(requeueable=False), restarts_in_place=2)
    stuck = decide(replace(bare, tested=(replace(after.tested[0], failed={"n02": "n02 is slow"}),)))
    assert stuck.road is Road.RESTART_IN_PLACE, "n02 is slow, and there is no other node"
    assert "n02 is slow; no road is left without them" in stuck.reason


def test_a_group_is_left_as_a_whole_only_where_the_site_wants_it_and_others_take_over() -> None:
    """The paper's way: all of the group, untested; else the tests."""
    group = ("n13", "n14", "n15", "n16")
    s = hang(apart_nodes=("n14",), apart_group=group, ladder_options=replace(OFFERED, over_evict=True))
    assert decide(s).rung == "test_apart"
    plan = decide(replace(s, standby_nodes=4))
    assert (plan.road, plan.evict, plan.rung) == (Road.SEAT, group, "leave_group")
    assert "ladder.over_evict" in plan.reason
    spares = ("n17", "n18", "n19", "n20")
    roomy = replace(s, allocation_nodes=(*NODES, *spares), healthy_spares=spares)
    assert decide(roomy).road is Road.SPARE_IN_ALLOCATION
    assert decide(replace(roomy, apart_group=NODES[:11], standby_nodes=20)).rung == "test_apart", "more than half"
    assert decide(replace(roomy, ladder_options=OFFERED)).rung == "test_apart"
    assert decide(next_incident(replace(s, standby_nodes=4), plan)).rung == "test_apart", "once"


def test_a_node_that_was_left_is_no_partner_and_no_spare() -> None:
    """Slurm may have given it to the job again."""
    two = hang(allocation_nodes=("n1", "n2", "n3"), training_nodes=("n1", "n2"), healthy_spares=("n3",))
    left = replace(two, ladder=replace(two.ladder, left=("n3",)))
    assert decide(left).test_nodes == ("n1", "n2")
    s = replace(left, training_node_count=2)
    assert decide(after_tests(s, decide(s), {"n2": "n2 fails"})).road is Road.SEAT
    assert Rung.TEST.value == decide(s).rung
    assert UNDETERMINED.reason in decide(s).reason
