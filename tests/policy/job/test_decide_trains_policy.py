"""decide: a job that trains while one of its nodes reports a fault is moved or left alone, and never stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import culprit, situation

from slurm_robust.core.model import Failure, FailureCause, Road
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.situation import NODE_REPORT, JobFacts, Situation

REPORTED = {"n2": "node n2 reports a row remap is pending"}
REPORT = Failure(NODE_REPORT, ("n2",), FailureCause.NODE)
EARLIER = st.builds(Failure, st.sampled_from(["exit 1", NODE_REPORT]), st.just(("n1",)), st.sampled_from(FailureCause))


def trains(**more: object) -> Situation:
    """n2 has reported a fault, and nothing else is known."""
    return situation(culprit("n2"), failure=REPORT, faulty_nodes=REPORTED, **more)


@pytest.mark.parametrize("spent", [{"fruitless": 6}, {"failed_launches": 30, "failed_launches_limit": 30}])
def test_attempts_without_a_new_step_do_not_stop_a_job_that_trains(spent: dict[str, int]) -> None:
    """It is on its way to a new step. Once it has ended or hangs, or another node is dead, the limits hold."""
    assert (decide(trains(**spent)).road, decide(trains(**spent)).evict) == (Road.SPARE_IN_ALLOCATION, ("n2",))
    for wrong in ({"ended": True, "exit_code": 1}, {"action_limit_reached": True}, {"dead_nodes": ("n3",)}):
        assert decide(trains(**spent, **wrong)).exit_code == 93
    hang = replace(trains(**spent), failure=Failure("hang at all_reduce", ("n2",), FailureCause.NODE))
    assert decide(hang).exit_code == 93


SITUATIONS = st.builds(
    trains,
    fruitless=st.integers(0, 9),
    earlier_failures=st.lists(EARLIER, max_size=3).map(tuple),
    job=st.builds(JobFacts, st.booleans()),
    healthy_spares=st.sampled_from([(), ("n5",)]),
    resumes=st.sampled_from([True, False, None]),
    restarts_in_place=st.integers(0, 3),
)


@given(SITUATIONS)
def test_whatever_came_before(s: Situation) -> None:
    """It leaves the node, or nothing is done."""
    plan = decide(s)
    assert plan.road is not Road.STOP
    assert plan.road is Road.ALERT_ONLY or plan.evict == ("n2",)
