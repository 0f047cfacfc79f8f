"""A loss that went bad: which plans go back, and when it is enough."""

from __future__ import annotations

import pytest
from situations import FINISHED, UNDETERMINED, USER_CODE, culprit, situation

from slurm_robust.core.model import Road, Verdict
from slurm_robust.policy.job.bad_loss import BadLoss
from slurm_robust.policy.job.decide import decide

BAD = BadLoss("loss nan at step 1234", healthy_step=1000)


@pytest.mark.parametrize("verdict", [USER_CODE, FINISHED, UNDETERMINED, culprit("n2", infrastructure=False)])
def test_a_training_that_ended_for_its_loss_goes_back(verdict: Verdict) -> None:
    """Instead of stopping with the program's own code; the reason has both steps."""
    plan = decide(situation(verdict, ended=True, exit_code=1, bad_loss=BAD))
    assert (plan.road, plan.roll_back, plan.evict) == (Road.RESTART_IN_PLACE, True, ())
    assert "1234" in plan.reason
    assert "1000" in plan.reason


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (BadLoss("loss nan at step 9", 5, before=2), "limit 2"),
        (BadLoss("loss nan at step 9"), "TypeError"),
        (BadLoss("loss nan at step 9", 5, limit=0), "TypeError"),
    ],
)
def test_where_it_cannot_it_stops_as_without(bad: BadLoss, says: str) -> None:
    """It went back often enough, nothing is healthy, or the site does not want it: the program's own exit code."""
    plan = decide(situation(USER_CODE, ended=True, exit_code=7, bad_loss=bad))
    assert (plan.road, plan.roll_back, plan.exit_code) == (Road.STOP, False, 7)
    assert says in plan.reason


def test_a_node_at_fault_is_left_all_the_same() -> None:
    """Its road, and back to before the loss went bad; where it cannot go back, its road."""
    for bad, back in ((BAD, True), (BadLoss("loss nan at step 9"), False), (BadLoss("x", 5, before=2), False)):
        plan = decide(situation(culprit("n2"), ended=True, bad_loss=bad))
        assert (plan.road, plan.evict, plan.roll_back) == (Road.SPARE_IN_ALLOCATION, ("n2",), back)
    plan = decide(situation(culprit("n2"), healthy_spares=(), bad_loss=BAD))
    assert (plan.road, plan.roll_back) == (Road.SEAT, True)


def test_a_bad_loss_alone_ends_nothing() -> None:
    """A training that runs on is left alone."""
    plan = decide(situation(UNDETERMINED, bad_loss=BAD))
    assert (plan.road, plan.roll_back) == (Road.ALERT_ONLY, False)


def test_attempts_without_a_new_step_come_first() -> None:
    """A crash loop stops whatever the loss is."""
    plan = decide(situation(USER_CODE, ended=True, fruitless=3, bad_loss=BAD))
    assert (plan.road, plan.exit_code) == (Road.STOP, 93)
