"""decide: whose failure it is, and when a job is stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from situations import FINISHED, REQUEUES, UNDETERMINED, USER_CODE, culprit, situation

from slurm_robust.core.model import Failure, FailureCause, Road
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.situation import JobFacts


def test_user_error_stops_with_its_own_code() -> None:
    """A TypeError costs no node and no restart."""
    plan = decide(situation(USER_CODE, ended=True, exit_code=7))
    assert (plan.road, plan.exit_code, plan.evict) == (Road.STOP, 7, ())
    assert "no node is blamed" in plan.reason


def test_an_error_that_was_raised_needs_no_end() -> None:
    """A rank that hangs in its teardown never ends: no reason to wait for the action limit."""
    plan = decide(situation(replace(USER_CODE, corroborated=True)))
    assert (plan.road, plan.exit_code, plan.evict) == (Road.STOP, 93, ())
    assert decide(situation(USER_CODE)).road is Road.ALERT_ONLY


@pytest.mark.parametrize(("code", "returned"), [(0, 0), (143, 143), (None, 93)])
def test_ends_that_need_no_recovery(code: int | None, returned: int) -> None:
    """A normal end and a cancelled one pass their exit code on; an unknown one is never told as success."""
    plan = decide(situation(FINISHED, ended=True, exit_code=code))
    assert (plan.road, plan.exit_code) == (Road.STOP, returned)


def test_rank_only_fault_restarts_in_place() -> None:
    """A killed rank with nothing against its node: the same nodes once more."""
    plan = decide(situation(culprit("n2", infrastructure=False), ended=True, exit_code=137))
    assert (plan.road, plan.evict) == (Road.RESTART_IN_PLACE, ())


@pytest.mark.parametrize(
    ("cause", "evict"), [(FailureCause.EITHER, ("n2",)), (FailureCause.NODE, ("n2",)), (FailureCause.PROGRAM, ())]
)
def test_same_failure_on_the_same_node(cause: FailureCause, evict: tuple[str, ...]) -> None:
    """A second crash on one node makes the node suspect; a second exit code, which moves with the rank, does not."""
    failure = Failure("died: SIGSEGV", ("n2",), cause)
    plan = decide(
        situation(
            culprit("n2", infrastructure=False),
            ended=True,
            failure=failure,
            earlier_failures=(failure,),
            restarts_in_place=1,
        )
    )
    assert plan.evict == evict


def test_same_failure_on_other_nodes() -> None:
    """A hang that came back elsewhere is the program's, though this verdict names a node."""
    plan = decide(
        situation(
            culprit("n3"),
            exit_code=5,
            failure=Failure("hang at f", ("n3",)),
            earlier_failures=(Failure("hang at f", ("n2",)),),
        )
    )
    assert (plan.road, plan.exit_code, plan.evict) == (Road.STOP, 5, ())
    assert "n2" in plan.reason
    assert "n3" in plan.reason


@pytest.mark.parametrize(
    "earlier", [Failure("hang at g", ("n2",)), Failure("hang at f", ("n3",)), Failure("hang at f", ())]
)
def test_not_the_same_failure(earlier: Failure) -> None:
    """Another place, the same node, or no node known: no reason to call it the program's."""
    plan = decide(situation(culprit("n3"), failure=Failure("hang at f", ("n3",)), earlier_failures=(earlier,)))
    assert plan.evict == ("n3",)


def test_two_nodes_that_die_are_two_nodes() -> None:
    """Silent nodes one after the other are no program error."""
    plan = decide(
        situation(
            culprit("n3"),
            failure=Failure("node: silent", ("n3",), FailureCause.NODE),
            earlier_failures=(Failure("node: silent", ("n2",), FailureCause.NODE),),
        )
    )
    assert plan.evict == ("n3",)


def test_undetermined_escalates() -> None:
    """In place, then requeued without a name, then stopped; never a node."""
    plans = [decide(situation(UNDETERMINED, ended=True, exit_code=1, restarts_in_place=n)) for n in range(3)]
    assert [p.road for p in plans] == [Road.RESTART_IN_PLACE, Road.SEAT, Road.STOP]
    assert all(p.evict == () for p in plans)
    assert plans[-1].exit_code == 1


def test_fruitless_attempts_stop() -> None:
    """Three without a new step: exit 93, and what the last one was."""
    plan = decide(situation(culprit("n2"), fruitless=3))
    assert (plan.road, plan.exit_code) == (Road.STOP, 93)
    assert "D state" in plan.reason


def test_launches_of_the_job_that_come_to_nothing_stop_it() -> None:
    """Whichever runs of the script they were: exit 93, and the key to raise."""
    plan = decide(situation(culprit("n2"), failed_launches=30, failed_launches_limit=30))
    assert (plan.road, plan.exit_code) == (Road.STOP, 93)
    assert "supervise.fruitless_launches_per_hour" in plan.reason
    assert decide(situation(culprit("n2"), failed_launches=29, failed_launches_limit=30)).road is not Road.STOP


def test_a_launch_that_slurm_refused_is_no_attempt_of_the_program() -> None:
    """A requeued job has lost its GRES: another allocation, a few times. Any other asked for what it does not have."""
    refused = Failure("died: launch", (), FailureCause.SLURM)
    again = JobFacts(requeued=True)
    for fruitless, earlier, road in ((3, 0, Road.PLAIN_REQUEUE), (0, 1, Road.PLAIN_REQUEUE), (0, 2, Road.STOP)):
        lost = situation(UNDETERMINED, ended=True, exit_code=1, failure=refused, job=again, fruitless=fruitless)
        plan = decide(replace(lost, earlier_failures=(refused,) * earlier))
        assert (plan.road, plan.evict) == (road, ())
    first = decide(situation(UNDETERMINED, ended=True, exit_code=1, failure=refused))
    assert (first.road, first.exit_code) == (Road.STOP, 1)


def test_a_disk_that_is_full_still_is_no_road() -> None:
    """Whoever restarts there fails there: the sentence says what to free, the exit code stays the program's."""
    plan = decide(situation(UNDETERMINED, ended=True, exit_code=1, fruitless=3, full_disk="/ckpt is full (0 B free)"))
    assert (plan.road, plan.exit_code, plan.evict) == (Road.STOP, 1, ())
    assert "/ckpt is full" in plan.reason


def test_the_same_words_on_the_same_node_count_beyond_a_new_step() -> None:
    """A broken GPU lets training go on for a while each time; elsewhere, only what came since the last step does."""
    error = Failure("died: cuda error: unspecified launch failure", ("n2",), FailureCause.WORDS)
    accused = situation(culprit("n2", infrastructure=False), ended=True, failure=error, older_failures=(error,))
    assert decide(accused).evict == ("n2",)
    elsewhere = replace(accused, older_failures=(replace(error, nodes=("n3",)),))
    assert decide(elsewhere).road is Road.RESTART_IN_PLACE


def test_an_error_that_goes_where_the_job_goes_is_no_nodes() -> None:
    """It came on n2, and on n3 after the job had moved; again on n3 it takes no second node from the job."""
    error = Failure("died: runtimeerror: odd batch", ("n3",), FailureCause.WORDS)
    moved = (replace(error, nodes=("n2",)), error)
    again = situation(culprit("n3", infrastructure=False), ended=True, failure=error, older_failures=moved)
    assert decide(again).evict == ()
    assert decide(replace(again, older_failures=(error,))).evict == ("n3",)


SILENT = situation(
    culprit("n2", infrastructure=False),
    ended=True,
    exit_code=3,
    failure=Failure("died: exit 3", ("n2",), FailureCause.PROGRAM),
)
"""A rank ended with 3, and nothing says why."""


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("fruitless", [0, 1, 3])
def test_a_bare_exit_code_is_passed_on(outside: bool, over: bool, fruitless: int) -> None:
    """The script may have its own next line for it: whoever launched the step, and whether it has trained or not."""
    plan = decide(replace(SILENT, outside=outside, over=over, fruitless=fruitless))
    assert (plan.road, plan.exit_code, plan.evict) == (Road.STOP, 3, ())
    assert "nothing is started again" in plan.reason


@pytest.mark.parametrize(
    "evidence",
    [
        {"failure": Failure("died: SIGKILL", ("n2",))},
        {"failure": Failure("died: connection reset", ("n2",), FailureCause.WORDS)},
        {"failure": None},
        {"dead_nodes": ("n2",)},
        {"faulty_nodes": {"n2": "n2 reports XID 79"}},
        {"verdict": culprit("n2")},
    ],
)
def test_a_signal_words_or_a_fault_of_a_node_are_more_than_an_exit_code(evidence: dict[str, object]) -> None:
    """Then the end may be no wish of the program's, and training goes on."""
    assert decide(replace(SILENT, **evidence)).road is not Road.STOP  # type: ignore[arg-type]
    attached = replace(SILENT, outside=True, healthy_spares=())
    assert decide(replace(attached, **evidence)).road in REQUEUES  # type: ignore[arg-type]
