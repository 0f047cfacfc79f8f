"""decide: which road the next attempt takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from situations import FINISHED, UNDETERMINED, USER_CODE, culprit, situation

from slurm_robust.core.model import Conclusion, Mode, Road, Verdict
from slurm_robust.policy.job.consequences import Silence
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.eviction import max_evictions, with_dirty
from slurm_robust.policy.job.situation import JobFacts


def test_spare_in_the_allocation() -> None:
    """A suspect and a spare: leave the suspect, stay in the allocation, and say all three."""
    plan = decide(situation(culprit("n2")))
    assert (plan.road, plan.evict) == (Road.SPARE_IN_ALLOCATION, ("n2",))
    for word in ("n2", "D state", "n5", "allocation"):
        assert word in plan.reason


@pytest.mark.parametrize(
    ("more", "road", "says"),
    [
        ({"healthy_spares": ()}, Road.SEAT, "it needs 4 nodes, and 3 would be left"),
        ({"healthy_spares": (), "daemon": None}, Road.SEAT, "if the site's daemon answers"),
        ({"healthy_spares": (), "daemon": False, "user_daemon": True}, Road.OWNER_REQUEUE, "owner"),
        ({"healthy_spares": (), "daemon": None, "user_daemon": True}, Road.OWNER_REQUEUE, "owner"),
        ({"healthy_spares": (), "daemon": False}, Road.PLAIN_REQUEUE, "Plain requeue"),
        ({"excluded_named": frozenset({"n2"})}, Road.SEAT, "names n2"),
        ({"dead_nodes": ("n2",)}, Road.SEAT, "has no --no-kill"),
        ({"dead_nodes": ("n2",), "job": JobFacts(survives_node_failure=True)}, Road.SPARE_IN_ALLOCATION, "dead"),
        (
            {"dead_nodes": ("n1",), "job": JobFacts(survives_node_failure=True), "verdict": culprit("n1")},
            Road.SEAT,
            "batch script's own node n1",
        ),
    ],
)
def test_roads_for_a_suspect(more: dict[str, object], road: Road, says: str) -> None:
    """Each road has its condition, and the plan says why it is not a better one."""
    verdict = more.pop("verdict", None) or culprit("n2")
    assert isinstance(verdict, Verdict)
    plan = decide(situation(verdict, **more))
    assert plan.road is road
    assert plan.evict == tuple(s.node for s in verdict.suspects)
    assert says in plan.reason


def test_live_batch_node_is_left_by_the_ranks_only() -> None:
    """Steps may run elsewhere as long as the batch host lives."""
    assert decide(situation(culprit("n1"))).road is Road.SPARE_IN_ALLOCATION


def test_unhealthy_spare_does_not_count() -> None:
    """A fifth node that does not answer is no place to go."""
    plan = decide(situation(culprit("n2"), healthy_spares=()))
    assert plan.road is Road.SEAT


def test_training_nodes_not_given() -> None:
    """Where only their number is known, a node that neither trains nor answers does not count as a place to go."""
    assert decide(situation(culprit("n2"), healthy_spares=(), training_nodes=())).road is Road.SEAT
    assert decide(situation(culprit("n2"), training_nodes=())).road is Road.SPARE_IN_ALLOCATION


def test_dead_spare_disturbs_nobody() -> None:
    """A node that does not train may die without a restart."""
    moving = Verdict(Conclusion.NONE, "training moves")
    plan = decide(situation(moving, healthy_spares=(), dead_nodes=("n5",)))
    assert plan.road is Road.ALERT_ONLY


@pytest.mark.parametrize("verdict", [culprit("n2", corroborated=False), UNDETERMINED, FINISHED, USER_CODE])
def test_waits_below_the_limit(verdict: Verdict) -> None:
    """Suspicion alone costs nothing but a capture."""
    plan = decide(situation(verdict))
    assert (plan.road, plan.evict) == (Road.ALERT_ONLY, ())
    assert plan.reason.startswith("waiting")


def test_waiting_says_what_is_wanted() -> None:
    """The alert names the evidence that would let it act."""
    assert "pairwise tests" in decide(situation(UNDETERMINED)).reason


def test_waiting_says_when_sure_evidence_is_acted_on() -> None:
    """It needs nothing more than its patience."""
    quiet = situation(culprit("n2"), silence=Silence(20.0))
    assert decide(quiet).reason.endswith("(acted on after 75 s without progress)")


def test_waiting_says_what_will_really_happen() -> None:
    """A stopped rank is continued long before anything else is done; in observe mode nothing is done at all."""
    stopped = situation(culprit("n2"), silence=Silence(20.0), continue_after_s=30.0)
    act = "continued (SIGCONT) after 30 s without progress; if that does not help, acted on after 75 s without progress"
    assert decide(stopped).reason.endswith(f"({act})")
    observed = decide(replace(stopped, mode=Mode.OBSERVE)).reason
    assert observed.endswith(f"(observe mode: nothing is done; in mode act: {act})")


@pytest.mark.parametrize("verdict", [culprit("n2"), UNDETERMINED])
def test_a_step_that_is_neither_ours_nor_to_be_requeued_has_stopped_once_it_is_over(verdict: Verdict) -> None:
    """People are told of a training that has stopped; while ranks are left, nothing is ended."""
    left = situation(verdict, outside=True, ended=True, exit_code=1, job=JobFacts(requeueable=False))
    assert decide(left).road is Road.ALERT_ONLY
    plan = decide(replace(left, over=True))
    assert (plan.road, plan.exit_code, plan.evict) == (Road.STOP, 1, ())
    assert plan.reason.endswith(
        "Nothing is started again: the job may not be requeued, and the step is not ours to start"
    )


def test_what_moves_and_trains_nothing_is_ended_at_the_limit_only() -> None:
    """An endless loop moves all the time: left alone before the site's limit, started anew in place past it."""
    moving = Verdict(Conclusion.NONE, "rank 0 moves outside the collective")
    assert decide(situation(moving)).road is Road.ALERT_ONLY
    plan = decide(situation(moving, action_limit_reached=True))
    assert (plan.road, plan.evict) == (Road.RESTART_IN_PLACE, ())


def test_uncorroborated_suspect_at_the_limit() -> None:
    """The site's limit decides where evidence did not."""
    plan = decide(situation(culprit("n2", corroborated=False), action_limit_reached=True))
    assert (plan.road, plan.evict) == (Road.SPARE_IN_ALLOCATION, ("n2",))


@pytest.mark.parametrize("verdict", [UNDETERMINED, culprit("n2", infrastructure=False)])
@pytest.mark.parametrize(("resumes", "says"), [(None, "nothing shows"), (False, "started from zero before")])
def test_a_command_that_may_start_from_zero_is_not_restarted_in_place(
    verdict: Verdict, resumes: bool | None, says: str
) -> None:
    """A requeue runs the script again, which may choose the checkpoint; what was saved is worth two minutes."""
    at_risk = situation(verdict, ended=True, exit_code=1, resumes=resumes)
    plan = decide(at_risk)
    assert plan.road is Road.SEAT
    assert says in plan.reason
    assert "runs the script again" in plan.reason
    assert decide(replace(at_risk, at_stake=False)).road is Road.RESTART_IN_PLACE, "nothing was done yet"
    assert decide(replace(at_risk, job=JobFacts(requeueable=False))).road is Road.RESTART_IN_PLACE, "no other road"
    assert decide(replace(at_risk, resumes=True)).road is Road.RESTART_IN_PLACE


def test_a_spare_is_no_place_for_a_command_that_may_start_from_zero() -> None:
    """Without its suspect the job goes on elsewhere, by the script; a cause that most nodes share is no other case."""
    plan = decide(situation(culprit("n2"), resumes=None))
    assert (plan.road, plan.evict) == (Road.SEAT, ("n2",))
    assert "runs the script again" in plan.reason
    assert decide(situation(culprit("n1", "n2", "n3"), resumes=None)).road is Road.SEAT


def test_more_suspects_than_half() -> None:
    """A cause that most nodes share evicts none of them."""
    plan = decide(situation(culprit("n1", "n2", "n3")))
    assert (plan.road, plan.evict) == (Road.RESTART_IN_PLACE, ())
    plan = decide(situation(culprit("n1", "n2", "n3"), restarts_in_place=1))
    assert (plan.road, plan.evict) == (Road.SEAT, ())


def test_not_requeueable() -> None:
    """No place inside and no requeue: once in place, then stop and say what to type."""
    facts = JobFacts(requeueable=False)
    plan = decide(situation(culprit("n2"), healthy_spares=(), job=facts))
    assert (plan.road, plan.evict) == (Road.RESTART_IN_PLACE, ())
    plan = decide(situation(culprit("n2"), healthy_spares=(), job=facts, restarts_in_place=1))
    assert plan.road is Road.STOP
    assert "--requeue" in plan.reason


@pytest.mark.parametrize("verdict", [UNDETERMINED, culprit("n2"), culprit("n1", "n2", "n3")])
def test_a_watch_from_outside_starts_no_step_anew(verdict: Verdict) -> None:
    """`sbatch --robust` and `srobust attach --act`: a requeue; where the job cannot be requeued, words alone."""
    outside = situation(verdict, healthy_spares=(), action_limit_reached=True, outside=True)
    assert decide(outside).road is Road.SEAT
    plan = decide(replace(outside, job=JobFacts(requeueable=False)))
    assert (plan.road, plan.evict) == (Road.ALERT_ONLY, ())
    assert "the job may not be requeued" in plan.reason
    assert "in place" not in plan.reason


def test_single_node_may_be_left() -> None:
    """Half of one node is none; one may always go."""
    assert [max_evictions(n) for n in (1, 2, 3, 4, 9)] == [1, 1, 1, 2, 4]


def test_nodes_that_did_not_get_clean_are_left_as_long_as_they_are_few() -> None:
    """A file system that is away leaves processes in D state everywhere: not the nodes' own fault."""
    assert with_dirty((), (), 1) == ()
    assert with_dirty(("n1",), {"n3": "processes [5] outlive SIGKILL"}, 4) == ("n1", "n3")
    assert with_dirty(("n1",), {"n2": "", "n3": ""}, 4) is None
    assert with_dirty(("n1", "n2"), (), 2) == ("n1", "n2"), "nothing to add to what was decided before"
