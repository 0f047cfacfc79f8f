"""What each grade of evidence allows, and when."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import culprit, situation

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.core.model import Conclusion, Grade, Road, TestName, Verdict
from slurm_robust.policy.job.consequences import (
    CONSEQUENCES,
    FIRST_STEP,
    Pauses,
    Silence,
    due,
    learnt_limit_s,
    may_evict,
    patience_s,
)
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.ladder import LadderOptions
from slurm_robust.policy.job.situation import JobFacts

LADDER = LadderOptions(enabled=True, tests=(TestName.IN_NODE, TestName.PAIRS))
NOBODY_WORKS = Verdict(Conclusion.UNDETERMINED, "all ranks wait", corroborated=True, grade=Grade.STRONG)
KINDS = ("train", "checkpoint", FIRST_STEP)


def silent(seconds: float, kind: str = "train", **longest_s: float) -> Silence:
    """A silence of a training that has shown these healthy pauses, with the site's defaults."""
    return Silence.of(seconds, kind, Pauses(longest_s), SuperviseConfig())


def test_every_grade_has_a_consequence() -> None:
    """And the page of grades shows them all."""
    assert set(CONSEQUENCES) == set(Grade)


def test_defaults_keep_the_promise() -> None:
    """Strong evidence leaves fifteen of ninety seconds for captures and for ending the ranks; weak has five minutes."""
    assert patience_s(Grade.CERTAIN, silent(0)) == 0
    assert patience_s(Grade.STRONG, silent(0)) == 75
    assert patience_s(Grade.WEAK, silent(0)) == 300
    assert patience_s(Grade.NONE, silent(0)) == math.inf


@pytest.mark.parametrize(
    ("silence", "strong_s", "weak_s"),
    [
        (silent(0, train=20.0), 75, 300),
        (silent(0, train=40.0), 120, 300),
        (silent(0, train=200.0), 600, 600),
        (silent(0, checkpoint=200.0), 75, 300),
        (silent(0, "checkpoint"), math.inf, math.inf),
        (silent(0, "checkpoint", checkpoint=10.0), 75, 300),
        (silent(0, FIRST_STEP), 300, 1800),
        (silent(0, FIRST_STEP, train=1.0), 300, 300),
        (silent(0, FIRST_STEP, **{FIRST_STEP: 30.0}), 90, 300),
    ],
)
def test_patience_is_learnt_by_kind(silence: Silence, strong_s: float, weak_s: float) -> None:
    """Three times the longest healthy pause of the kind; an announced kind that has never ended is not cut short.

    A job that has never reported a step may be an idle service: weak evidence is given the time of the start-up.
    """
    assert patience_s(Grade.STRONG, silence) == strong_s
    assert patience_s(Grade.WEAK, silence) == weak_s


def test_a_pause_that_was_cut_on_weak_evidence_has_three_times_as_long_the_next_time() -> None:
    """It may have been healthy: a rank that waits six minutes in each epoch is restarted once and not stopped for good.

    Strong evidence does not wait longer for it, another kind of pause neither, and the start-up has its own limits.
    """
    cut = Pauses().after_cut("train", 300.0).after_cut(FIRST_STEP, 1800.0)
    next_time = Silence.of(0, "train", cut, SuperviseConfig())
    assert patience_s(Grade.WEAK, next_time) == 900
    assert patience_s(Grade.STRONG, next_time) == 75
    assert patience_s(Grade.WEAK, replace(next_time, kind=FIRST_STEP)) == 300
    assert learnt_limit_s("train", cut, SuperviseConfig()) == 0.0


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 5000))), st.sampled_from(KINDS), st.floats(0, 5000))
def test_what_was_healthy_is_never_acted_on(seen: list[tuple[str, float]], kind: str, silent_s: float) -> None:
    """No silence up to three times a pause that has ended by itself is acted on, but for certain evidence."""
    pauses = Pauses()
    for name, pause_s in seen:
        pauses = pauses.after(name, pause_s)
    longest_s = max((pause_s for name, pause_s in seen if name == kind), default=0.0)
    silence = Silence.of(silent_s, kind, pauses, SuperviseConfig())
    for grade in (Grade.STRONG, Grade.WEAK, Grade.NONE):
        if silent_s < 2.99 * longest_s:
            assert not due(grade, silence)


def test_pauses_of_two_attempts_are_merged() -> None:
    """The longest of each kind counts."""
    one, other = Pauses({"train": 5.0, "idle": 9.0}), Pauses({"train": 7.0})
    assert one.merged(other).longest_s == other.merged(one).longest_s == {"train": 7.0, "idle": 9.0}


@pytest.mark.parametrize(("grade", "after_s"), [(Grade.CERTAIN, 0.0), (Grade.STRONG, 75.0), (Grade.WEAK, 300.0)])
def test_nothing_is_done_before_its_time(grade: Grade, after_s: float) -> None:
    """A second before the patience is over the job is only watched; then it is acted on."""
    named = culprit("n2", grade=grade)
    if after_s:
        assert decide(situation(named, silence=silent(after_s - 1.0))).road is Road.ALERT_ONLY
    assert decide(situation(named, silence=silent(after_s))).road is not Road.ALERT_ONLY


def test_weak_evidence_restarts_in_place_once_and_is_then_tested() -> None:
    """It costs no node, not even where the same was seen on the same node before."""
    s = situation(culprit("n2", grade=Grade.WEAK), silence=silent(300), ladder_options=LADDER)
    first = decide(s)
    assert (first.road, first.evict) == (Road.RESTART_IN_PLACE, ())
    again = decide(replace(s, restarts_in_place=1))
    assert (again.road, again.evict) == (Road.TEST, ())
    at_limit = decide(replace(s, restarts_in_place=1, ladder_options=LadderOptions(), action_limit_reached=True))
    assert at_limit.evict == ()


def test_weak_evidence_about_a_step_of_the_script_is_only_told() -> None:
    """The step is not ours to start again. At the action limit the job is requeued, and no node is left for it."""
    s = situation(culprit("n2", grade=Grade.WEAK), silence=silent(300), outside=True)
    assert decide(s).road is Road.ALERT_ONLY
    overdue = replace(s, silence=silent(1801), action_limit_reached=True)
    assert (decide(overdue).road, decide(overdue).evict) == (Road.SEAT, ())
    assert decide(replace(overdue, job=JobFacts(requeueable=False))).road is Road.ALERT_ONLY


def test_a_deadlock_of_which_nobody_is_named_has_the_nodes_tested() -> None:
    """Within the patience of strong evidence, not at the action limit."""
    s = situation(NOBODY_WORKS, ladder_options=LADDER)
    assert decide(replace(s, silence=silent(74))).road is Road.ALERT_ONLY
    assert decide(replace(s, silence=silent(75))).road is Road.TEST


def test_only_two_grades_may_cost_a_node() -> None:
    """The two that say more than that somebody stands still."""
    assert [grade for grade in Grade if may_evict(grade)] == [Grade.CERTAIN, Grade.STRONG]


def test_ranks_that_lost_each_other_are_started_again_once() -> None:
    """A training that made new steps may not meet the same again; if it does, its code is at fault and it stops."""
    verdict = Verdict(Conclusion.USER_CODE, "ranks entered different operations", corroborated=True, grade=Grade.STRONG)
    s = situation(verdict, silence=silent(80))
    assert decide(s).road is Road.RESTART_IN_PLACE
    assert decide(replace(s, restarts_in_place=1)).road is Road.STOP
    assert decide(replace(s, fruitless=1)).road is Road.STOP
    assert decide(replace(s, verdict=replace(verdict, grade=Grade.CERTAIN))).road is Road.STOP, "an exception"
