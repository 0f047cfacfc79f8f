"""An outage of something that nodes share: who waits, how long, and what comes after."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import REQUEUES, UNDETERMINED, situation

from slurm_robust.core.model import Failure, FailureCause, Road
from slurm_robust.policy.job import outage
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.situation import JobFacts, Situation
from slurm_robust.supervise.lineage.lineage import Lineage

STALE = Failure("died: storage: OSError: Stale file handle", ("n2",), FailureCause.SHARED, "storage")
OTHER = Failure("died: SIGKILL", ("n2",))


def failed(*earlier: Failure, failure: Failure = STALE, **more: object) -> Situation:
    """An attempt that an outage ended, after these."""
    base = situation(UNDETERMINED, ended=True, exit_code=1, failure=failure, earlier_failures=earlier)
    return replace(base, outage_wait_s=1800.0, **more)  # type: ignore[arg-type]


def test_each_pause_is_twice_the_one_before() -> None:
    """5, 10, 20 s: restarted in place on the same nodes, nobody evicted, and it is said how long."""
    plans = [decide(failed(*[STALE] * n)) for n in range(3)]
    assert [plan.pause_s for plan in plans] == [5.0, 10.0, 20.0]
    assert {(plan.road, plan.evict) for plan in plans} == {(Road.RESTART_IN_PLACE, ())}
    assert "Wait 20 s (waited so far: 15 s; limit 1800 s)" in plans[2].reason


@given(st.integers(0, 60), st.floats(0, 1e5, allow_nan=False))
def test_all_pauses_together_keep_to_the_limit(attempts: int, limit_s: float) -> None:
    """Until the limit is reached none is shorter than the one before, but for the last."""
    pauses = [outage.pause_s(n, limit_s) for n in range(attempts)]
    assert sum(pauses) <= limit_s + 1e-6
    assert all(0 <= pause <= outage.MAX_PAUSE_S for pause in pauses)
    waits = [pause for pause in pauses if pause > 0]
    assert waits[:-1] == sorted(waits[:-1])


def test_the_attempts_that_an_outage_ends_are_not_fruitless() -> None:
    """The tenth in a row: still waiting."""
    assert decide(failed(*[STALE] * 9, fruitless=2)).pause_s == outage.MAX_PAUSE_S


def test_another_failure_begins_the_count_anew() -> None:
    """Only those in a row are one outage."""
    assert outage.attempts_lost((STALE, STALE, OTHER, STALE)) == 1


def test_a_script_that_has_to_be_run_again_is_requeued_after_the_pause() -> None:
    """As is a step that we cannot start."""
    for more in ({"resumes": False}, {"outside": True}):
        plan = decide(failed(**more))  # type: ignore[arg-type]
        assert plan.road in REQUEUES, more
        assert (plan.pause_s, plan.evict) == (5.0, ())
    left = decide(failed(outside=True, job=JobFacts(requeueable=False)))
    assert left.road is Road.ALERT_ONLY


def after_the_wait(*earlier: Failure, failure: Failure = STALE) -> Situation:
    """The limit is reached."""
    return replace(failed(*earlier, failure=failure, restarts_in_place=0), outage_wait_s=10.0)


def test_what_one_node_alone_has_missed_for_so_long_is_that_nodes() -> None:
    """Its mount or route: it is left and tested; everything waited for it first."""
    plan = decide(after_the_wait(STALE, STALE))
    assert plan.evict == ("n2",)
    assert "n2 alone has met it" in plan.reason


@pytest.mark.parametrize("nodes", [("n1", "n2", "n3"), ()])
def test_what_several_nodes_have_missed_evicts_nobody(nodes: tuple[str, ...]) -> None:
    """However long it lasts: the usual tries, then a stop."""
    everywhere = replace(STALE, nodes=nodes)
    plan = decide(after_the_wait(everywhere, everywhere, failure=everywhere))
    assert (plan.road, plan.evict, plan.pause_s) == (Road.RESTART_IN_PLACE, (), 0.0)
    last = replace(after_the_wait(everywhere, everywhere, failure=everywhere), restarts_in_place=2)
    assert decide(last).road is Road.STOP


@pytest.mark.parametrize("nodes", [("n1", "n2", "n3"), ("n2",), ()])
@pytest.mark.parametrize("limit_s", [60.0, 1800.0, 0.0])
def test_an_outage_that_does_not_end_ends_the_job(nodes: tuple[str, ...], limit_s: float) -> None:
    """Once the waiting is over, the attempts count as any others do: what is remembered decides, and it stops."""
    failure, known, waited_s = replace(STALE, nodes=nodes), Lineage("a", reached=100), 0.0
    for _ in range(40):
        now = replace(
            failed(*known.failures, failure=failure, restarts_in_place=known.restarts_in_place),
            outage_wait_s=limit_s,
            fruitless=known.fruitless + 1,
        )
        plan = decide(now)
        if plan.road is Road.STOP:
            break
        waited_s += plan.pause_s
        in_place = plan.road is Road.RESTART_IN_PLACE
        known = known.after(100, -1, failure, in_place=in_place, waited=plan.pause_s > 0)
    assert plan.road is Road.STOP
    assert waited_s == limit_s


def test_the_same_outage_on_other_nodes_is_no_programs() -> None:
    """It is stopped in the end, and blamed on nobody."""
    plan = decide(after_the_wait(replace(STALE, nodes=("n3",)), STALE))
    assert plan.road is Road.STOP
    assert "the program's" not in plan.reason


def test_a_dead_node_goes_first() -> None:
    """Its ranks may have met anything while it died."""
    assert decide(failed(dead_nodes=("n2",))).evict == ("n2",)
