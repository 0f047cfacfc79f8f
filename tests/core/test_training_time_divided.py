"""The time of a training is divided without a gap, and what contradicts itself is said to be unknown."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.core.model import TIME_KEYS
from slurm_robust.core.training_time import Span, Spent, Stop, TrainingAttempt, divided, ettr, spent, within

T0 = 1_700_000_000.0
"""When the first attempt could have started."""
S = Spent


def attempt(
    start: float, first: float | None, last: float | None, end: float | None, **more: object
) -> TrainingAttempt:
    """An attempt; times are seconds after T0."""
    at = [None if t is None else T0 + t for t in (first, more.pop("new", first), last)]  # type: ignore[operator]
    given_s = {"eligible_at_s": T0 + more.pop("eligible", start), **more}  # type: ignore[operator]
    ended = None if end is None else T0 + end
    return TrainingAttempt("t", "7", 0, 4, 8, **given_s, start_at_s=T0 + start, first_step_at_s=at[0],  # type: ignore
                           first_new_step_at_s=at[1], last_step_at_s=at[2], end_at_s=ended)  # fmt: skip


def stop(**times: float) -> Stop:
    """An incident; times are seconds after T0."""
    return Stop({name: T0 + at_s for name, at_s in times.items()})


def parts(spans: tuple[Span, ...]) -> dict[str, float]:
    """What is not zero, rounded."""
    return {what.value: round(seconds, 3) for what, seconds in spent(spans).items() if seconds}


def test_a_training_without_a_failure() -> None:
    """Queue, start, and steps to the end; what steps lost is spread over them."""
    spans = divided([attempt(10, 30, 128, 130, eligible=0, checkpoint_s=5.0, slow_s=15.0)], [], T0 + 500)
    assert parts(spans) == {"queue": 10, "start": 20, "productive": 80, "checkpoint": 5, "slow": 15}
    assert ettr(spans) == pytest.approx(80 / 130)
    assert parts(within(spans, T0 + 80, T0 + 105)) == {"productive": 20, "checkpoint": 1.25, "slow": 3.75}
    assert parts(within(spans, T0 + 20, T0 + 30)) == {"start": 10}
    assert ettr(within(spans, T0 + 1000, T0 + 2000)) is None


def test_a_failure_and_a_requeue() -> None:
    """From the last sign of progress on, the time is the failure's, until the first new step of the next attempt."""
    first = attempt(10, 30, 100, 135, eligible=0)
    second = attempt(160, 190, 290, 300, new=210, eligible=135)
    found = stop(fault=100, suspected=112, decided=130, stopped=135, first_new_step=210)
    spans = divided([second, first], [found], T0 + 999)
    told = {"queue": 10, "start": 20, "productive": 160, "detection": 12, "diagnosis": 18, "restart": 60}
    assert parts(spans) == told | {"recomputation": 20}
    assert sum(s.length_s for s in spans) == pytest.approx(300)


@pytest.mark.parametrize("eligible", [135, 150])
def test_the_failure_of_an_attempt_that_is_not_known(eligible: int) -> None:
    """A report's time begins while the training is being brought back: the time since then is the failure's."""
    second = attempt(160, 190, 290, 300, new=210, eligible=eligible)
    found = stop(fault=100, suspected=112, decided=130, stopped=135, first_new_step=210)
    spans = divided([second], [found], T0 + 999)
    assert parts(spans) == {"restart": 190 - eligible, "recomputation": 20, "productive": 90}
    assert not any(span.doubt for span in spans)
    waits = TrainingAttempt("t", "7", 1, 4, 8, eligible_at_s=T0 + eligible, start_at_s=0)
    assert parts(divided([waits], [found], T0 + 200)) == {"restart": 200 - eligible}
    # That attempt trained again before it ended.
    over = stop(fault=20, suspected=25, decided=30, first_new_step=60)
    assert parts(divided([second], [over], T0 + 999))["queue"] == 160 - eligible


def test_restarts_in_place_are_told_by_stamps() -> None:
    """One attempt of Slurm: the incident says when its steps stood still, and when new ones were made."""
    found = stop(fault=50, suspected=55, decided=60, stopped=61, running=62, first_new_step=81)
    again = ((T0 + 80, T0 + 90),)
    spans = divided([attempt(0, 10, 200, 201, restarts_within=again)], [found], T0 + 999)
    told = {"start": 10, "productive": 151, "detection": 5, "diagnosis": 5, "restart": 20, "recomputation": 10}
    assert parts(spans) == told
    without = divided([attempt(0, 10, 200, 201)], [found], T0 + 999)
    assert parts(without) == {"start": 10, "productive": 160, "detection": 5, "diagnosis": 5, "restart": 21}


def test_a_launch_that_dies_before_its_first_step_and_its_restart_in_place() -> None:
    """The attempt's first step followed the incident: until then it restarts."""
    found = stop(fault=20, suspected=21, decided=22, stopped=23, running=24)
    spans = divided([attempt(0, 40, 100, 101)], [found], T0 + 999)
    assert parts(spans) == {"start": 20, "detection": 1, "diagnosis": 1, "restart": 18, "productive": 61}


def test_tests_of_nodes_are_diagnosis() -> None:
    """The decision that counts comes after them."""
    found = stop(fault=50, suspected=55, decided=60, tests_started=61, tests_done=100, running=101, first_new_step=120)
    spans = divided([attempt(0, 10, 200, 201)], [found], T0 + 999)
    assert (parts(spans)["diagnosis"], parts(spans)["restart"]) == (45, 20)


def test_an_incident_after_which_steps_just_went_on_costs_nothing_of_its_own() -> None:
    """A pause is in the attempt's slow seconds; an alert is none."""
    found = stop(fault=50, suspected=80, decided=81)
    assert parts(divided([attempt(0, 10, 200, 201, slow_s=31.0)], [found], T0 + 999))["slow"] == 31
    later = stop(fault=150, suspected=160, decided=161, running=163, first_new_step=190)
    spans = divided([attempt(0, 10, 200, 201)], [found, later], T0 + 999)
    assert parts(spans)["productive"] == 151


def test_a_hang_that_was_only_observed_lasts_to_the_end() -> None:
    """Nothing was done, and no step followed: it waited for a person, and nothing was restarted."""
    hang = replace(stop(fault=50, suspected=60, decided=70), left_alone=True)
    spans = divided([attempt(0, 10, 50, 500)], [hang], T0 + 999)
    assert parts(spans) == {"start": 10, "productive": 40, "detection": 10, "diagnosis": 440}
    by_hand = divided([attempt(0, 10, 50, 500), attempt(520, 540, 600, 601, new=545)], [hang], T0 + 999)
    told = {"start": 10, "productive": 96, "detection": 10, "diagnosis": 440, "restart": 40, "recomputation": 5}
    assert parts(by_hand) == told


def test_a_requeue_that_no_failure_explains_waits_in_the_queue() -> None:
    """A person requeued it, or Slurm preempted it."""
    spans = divided([attempt(0, 10, 50, 52), attempt(80, 95, 200, 201, new=99)], [], T0 + 999)
    assert parts(spans) == {"start": 25, "productive": 144, "queue": 28, "recomputation": 4}


def test_live() -> None:
    """An attempt that runs counts until now; so do one that waits for its requeue, and an open suspicion."""
    assert parts(divided([attempt(0, 10, 95, None)], [], T0 + 100)) == {"start": 10, "productive": 90}
    assert parts(divided([attempt(0, None, None, None)], [], T0 + 100)) == {"start": 100}
    suspected = divided([attempt(0, 10, 50, None)], [stop(suspected=60)], T0 + 100)
    assert parts(suspected) == {"start": 10, "productive": 40, "detection": 10, "diagnosis": 40}
    waits = TrainingAttempt("t", "7", 1, 4, 8, eligible_at_s=T0 + 70, start_at_s=0.0)
    failed = stop(fault=50, suspected=60, decided=65, stopped=70)
    spans = divided([attempt(0, 10, 50, 70), waits], [failed], T0 + 100)
    assert parts(spans) == {"start": 10, "productive": 40, "detection": 10, "diagnosis": 5, "restart": 35}
    assert parts(divided([attempt(0, 10, 50, 51), waits], [], T0 + 100))["queue"] == 49


def test_what_nobody_saw_is_unknown() -> None:
    """A job without progress; one whose reports stopped; each with a sentence."""
    (silent,) = divided([attempt(0, None, None, 4000)], [], T0 + 9999)
    assert (silent.shares, silent.doubt) == ({S.UNKNOWN: 4000}, "this attempt reported no step")
    spans = divided([attempt(0, 10, 500, 4000, step_s=10.0)], [], T0 + 9999)
    assert parts(spans) == {"start": 10, "productive": 530, "unknown": 3460}
    assert "no step was reported in the last 3500 s" in spans[-1].doubt
    live = divided([attempt(0, 10, 500, None, step_s=10.0)], [], T0 + 4000)
    assert parts(live) == {"start": 10, "productive": 640, "unknown": 3350}, "two reports may be on their way"
    quiet = divided([attempt(0, 10, 500, 4000, report_every_s=0.0)], [], T0 + 9999)
    assert parts(quiet) == {"start": 10, "productive": 3990}, "it reports changes of its state only"


def test_a_hang_whose_incident_was_lost_counts_as_no_steps() -> None:
    """The daemon was away: the attempt ended within two reports of its last told step, with no known failure."""
    lost = [attempt(0, 10, 500, 590, step_s=1.0), attempt(600, 620, 900, 903, new=650, step_s=1.0)]
    spans = divided(lost, [], T0 + 999)
    told = {"start": 30, "productive": 490 + 13 + 253, "unknown": 77, "queue": 10, "recomputation": 30}
    assert parts(spans) == told
    assert next(span.doubt for span in spans if span.doubt).startswith("no step was reported in the last 90 s")


def test_launches_that_no_daemon_saw_are_unknown() -> None:
    """The attempt tells the stretch: steps, a hang and steps again, and the incident of the launch that was seen."""
    row = attempt(0, 10, 300, 301, restarts_within=((T0 + 210, T0 + 215),), unwatched=((T0 + 20, T0 + 200),))
    found = stop(fault=200, suspected=202, decided=203, stopped=204, running=205)
    told = {"start": 10, "productive": 10 + 86, "unknown": 180, "detection": 2, "diagnosis": 1, "restart": 7}
    assert parts(divided([row], [found], T0 + 999)) == told | {"recomputation": 5}


@pytest.mark.parametrize(
    ("attempts", "unknown_s", "why"),
    [
        ([attempt(100, 50, 190, 200)], 90, "contradict"),
        ([attempt(0, 10, 500, 200)], 190, "contradict"),
        ([attempt(100, None, None, 20, seen_at_s=T0 + 130)], 30, "ended before it started"),
        ([attempt(0, 10, 190, 200), attempt(150, 160, 290, 300)], 50, "overlap"),
        ([attempt(0, 10, 190, 200, checkpoint_s=900.0)], 190, "are said to have lost 900 s in 190 s"),
        ([attempt(0, 10, 190, 200, slow_s=math.nan)], 190, "are said to have lost"),
        ([attempt(0, 10, 190, math.nan, seen_at_s=T0 + 195)], 195, "when this attempt ended"),
    ],
)
def test_times_that_do_not_add_up_are_unknown(attempts: list[TrainingAttempt], unknown_s: float, why: str) -> None:
    """They are neither smoothed nor lost: that stretch is unknown, with a sentence."""
    spans = divided(attempts, [], T0 + 999)
    assert parts(spans)["unknown"] == unknown_s
    assert any(why in span.doubt for span in spans)


def test_stamps_of_an_incident_that_contradict_each_other() -> None:
    """A decision before the suspicion: what lies around it is unknown, all else is known."""
    found = stop(fault=50, suspected=80, decided=20, running=90, first_new_step=120)
    spans = divided([attempt(0, 10, 200, 201)], [found], T0 + 999)
    assert parts(spans)["unknown"] == 40
    assert parts(spans)["productive"] == 40 + 81


_any_time = st.one_of(
    st.none(),
    st.floats(T0, T0 + 1000),
    st.integers(0, 50).map(lambda n: T0 + n * 20.0),
    st.sampled_from([0.0, -5.0, math.nan, math.inf, -math.inf, 1.0, T0 + 1e6]),
)
_seconds = st.one_of(st.floats(0, 300), st.sampled_from([0.0, -3.0, math.nan, math.inf]))
_attempts = st.lists(
    st.builds(
        TrainingAttempt,
        *(st.just("t"), st.just("7"), st.integers(0, 3), st.just(4), st.just(8)),
        eligible_at_s=_any_time.map(lambda t: t or 0.0),
        start_at_s=_any_time.map(lambda t: t or 0.0),
        first_step_at_s=_any_time,
        first_new_step_at_s=_any_time,
        last_step_at_s=_any_time,
        seen_at_s=_any_time.map(lambda t: t or 0.0),
        end_at_s=_any_time,
        checkpoint_s=_seconds,
        slow_s=_seconds,
        step_s=_seconds,
        report_every_s=_seconds,
        unwatched=st.lists(st.tuples(_any_time.map(lambda t: t or 0.0), _any_time), max_size=2).map(tuple),
        restarts_within=st.lists(st.tuples(_any_time.map(lambda t: t or 0.0), _any_time), max_size=2).map(tuple),
    ),
    max_size=4,
)
_stops = st.lists(
    st.builds(
        Stop,
        st.dictionaries(
            st.sampled_from((*TIME_KEYS, "accepted")), _any_time.map(lambda t: math.nan if t is None else t)
        ),
        _any_time.map(lambda t: t or 0.0),
    ),
    max_size=4,
)


@given(_attempts, _stops, st.floats(T0, T0 + 1200), st.floats(T0, T0 + 600), st.floats(0, 600))
def test_the_parts_of_any_training_sum_to_its_wall_time(
    attempts: list[TrainingAttempt], stops: list[Stop], now_s: float, from_s: float, length_s: float
) -> None:
    """No gap, no overlap, no negative part, whatever the times; in every window, too."""
    spans = divided(attempts, stops, now_s)
    for one, after in pairwise(spans):
        assert one.end_at_s == after.begin_at_s
    for part in (spans, within(spans, from_s, from_s + length_s)):
        wall_s = part[-1].end_at_s - part[0].begin_at_s if part else 0.0
        assert sum(spent(part).values()) == pytest.approx(wall_s, abs=1e-6)
        assert all(seconds >= 0 for seconds in spent(part).values())
        assert all(span.doubt for span in part if S.UNKNOWN in span.shares)
        assert 0 <= (ettr(part) or 0) <= 1


_length = st.integers(6, 400)
_round = st.fixed_dictionaries(
    dict.fromkeys(("start", "again", "run", "detection", "diagnosis", "stopping", "gap"), _length)
    | {"failed": st.booleans(), "in_place": st.booleans()}
)


@given(_length, st.lists(_round, max_size=5), _length, _length)
def test_a_training_that_a_script_made_up_is_divided_as_the_script_knows(
    queue: int, rounds: list[dict[str, int]], start: int, run: int
) -> None:
    """Failures, requeues that no failure explains, restarts in place, in any order: exactly the script's seconds."""
    truth = dict.fromkeys(Spent, 0)
    truth[S.QUEUE], truth[S.START] = queue, start
    began_s, first_s = T0 + queue, T0 + queue + start
    new_s, now_s = first_s, first_s + run
    truth[S.PRODUCTIVE] = run
    eligible_s, attempts, stops, within_it = T0, list[TrainingAttempt](), list[Stop](), list[tuple[float, float]]()
    for one in rounds:
        last_s, failed = now_s, one["failed"] or one["in_place"]
        if failed:
            suspected_s = last_s + one["detection"]
            decided_s = suspected_s + one["diagnosis"]
            now_s = decided_s + one["stopping"]
            stops.append(Stop({"fault": last_s, "suspected": suspected_s, "decided": decided_s, "stopped": now_s}))
            truth[S.DETECTION] += one["detection"]
            truth[S.DIAGNOSIS] += one["diagnosis"]
            truth[S.RESTART] += one["stopping"] + one["gap"] + one["start"]
        else:
            truth[S.QUEUE] += one["gap"]
            truth[S.START] += one["start"]
        begin_s = now_s + one["gap"]
        again_s = begin_s + one["start"]
        if one["in_place"]:
            within_it.append((again_s, again_s + one["again"]))
        else:
            times = (eligible_s, began_s, first_s, new_s, last_s, 0.0, now_s)
            made = TrainingAttempt("t", "7", len(attempts), 4, 8, *times, restarts_within=tuple(within_it))
            attempts.append(made)
            within_it = []
            eligible_s, began_s, first_s, new_s = now_s, begin_s, again_s, again_s + one["again"]
        truth[S.RECOMPUTATION] += one["again"]
        truth[S.PRODUCTIVE] += one["run"]
        now_s = again_s + one["again"] + one["run"]
    times = (eligible_s, began_s, first_s, new_s, now_s, 0.0, now_s)
    attempts.append(TrainingAttempt("t", "7", len(attempts), 4, 8, *times, restarts_within=tuple(within_it)))
    found = spent(divided(attempts, stops, now_s + 999))
    assert {what: round(seconds, 3) for what, seconds in found.items()} == truth
