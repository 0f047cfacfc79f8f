"""Which version of the code runs next: a pure table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.core.model import Conclusion, Failure, FailureCause, Road, Verdict
from slurm_robust.policy.job.code_versions import TRIAL_S, CodeState, PendingCode, after_failure, due
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.situation import JobFacts, Situation

UPDATED = CodeState(in_force=2, proven=(1,))
ERROR = Failure("died: SyntaxError", ("n1",), FailureCause.PROGRAM)
HANG = Failure("hang: train.py:7", ("n1",), FailureCause.EITHER)


def test_an_update_that_ends_by_its_own_error_before_a_step_is_taken_back() -> None:
    """To the last version that made progress, told in capitals."""
    found = after_failure(UPDATED, ERROR, own_error=True, new_step=False)
    assert found is not None
    assert (found.number, found.back) == (1, True)
    assert found.reason.startswith("VERSION 2 OF THE CODE IS TAKEN BACK: version 1")


@pytest.mark.parametrize(
    ("state", "new_step"),
    [
        (CodeState(), False),
        (CodeState(in_force=1), False),
        (CodeState(in_force=1, proven=(1,)), False),
        (UPDATED, True),
        (replace(UPDATED, proven=(1, 2)), False),
        (replace(UPDATED, taken_back=(1,)), False),
    ],
)
def test_a_first_or_proven_version_stays(state: CodeState, new_step: bool) -> None:
    """The program's own error is then what it was before there were versions."""
    assert after_failure(state, ERROR, own_error=True, new_step=new_step) is None


def test_an_update_on_trial_that_ends_by_a_new_error_is_taken_back() -> None:
    """Also after its first new step; an error that an older version had, or an old version, is no reason."""
    trial = CodeState(in_force=1, proven=(1,)).switched(2, back=False, now_s=9.0).made_step()
    assert trial.trial_until_s == 9.0 + TRIAL_S
    found = after_failure(trial, ERROR, own_error=True, new_step=True)
    assert found is not None
    assert (found.number, found.back) == (1, True)
    assert after_failure(trial, HANG, own_error=False, new_step=True) is None
    known = replace(trial, others=(ERROR.signature,))
    assert after_failure(known, ERROR, own_error=True, new_step=True) is None
    back = trial.switched(1, back=True, now_s=10.0)
    assert (back.trial_until_s, back.older) == (0.0, 0)


def test_a_version_that_is_lost_is_not_gone_back_to() -> None:
    """Nor does it wait any more."""
    state = replace(UPDATED, proven=(1, 2), pending=PendingCode(3, "now", 10.0, "alice"))
    assert state.lost(1).older == 0
    assert (state.lost(3).pending, state.lost(2).pending) == (None, state.pending)


def test_a_failure_that_repeats_takes_the_version_back_unless_another_had_it() -> None:
    """Once is no reason; the same as before the update is no reason either."""
    once = replace(UPDATED, proven=(1, 2))
    assert after_failure(once, HANG, own_error=False, new_step=True) is None
    twice = once.failed(HANG)
    found = after_failure(twice, HANG, own_error=False, new_step=True)
    assert found is not None
    assert (found.number, found.back) == (1, True)
    assert "in the same way before (hang: train.py:7)" in found.reason
    old = CodeState(in_force=1, proven=(1,)).failed(HANG).switched(2, back=False).made_step().failed(HANG)
    assert after_failure(old, HANG, own_error=False, new_step=True) is None


@pytest.mark.parametrize("cause", [FailureCause.SHARED, FailureCause.SLURM, FailureCause.NODE])
def test_what_no_program_can_cause_says_nothing_about_the_code(cause: FailureCause) -> None:
    """Neither now, nor as the first of two."""
    failure = replace(HANG, cause=cause)
    assert UPDATED.failed(failure) == UPDATED
    assert after_failure(UPDATED.failed(HANG), failure, own_error=False, new_step=False) is None


def test_a_waiting_update_goes_before_a_rollback() -> None:
    """Its author has prepared it for the next failure; what ends the job by its own error is one."""
    pending = PendingCode(3, "next-failure", 10.0, "alice")
    found = after_failure(replace(UPDATED, pending=pending), ERROR, own_error=True, new_step=False)
    assert found is not None
    assert (found.number, found.back) == (3, False)
    assert after_failure(replace(UPDATED, pending=pending), HANG, own_error=False, new_step=False) is None


@pytest.mark.parametrize(
    ("when", "now_s", "step", "is_due"),
    [
        ("now", 0.0, -1, True),
        ("next-checkpoint", 0.0, -1, False),
        ("next-checkpoint", 0.0, 0, True),
        ("next-checkpoint", 10.0, -1, True),
        ("next-failure", 9.9, 5, False),
        ("next-failure", 10.0, -1, True),
    ],
)
def test_when_an_update_is_due(when: str, now_s: float, step: int, is_due: bool) -> None:
    """At once, after a checkpoint, or at the end of its window."""
    assert bool(due(PendingCode(2, when, 10.0, "alice"), now_s, step)) is is_due  # type: ignore[arg-type]


def test_switching_keeps_what_is_known() -> None:
    """A version taken back is not older any more; one that is put in force by hand again is."""
    state = UPDATED.failed(HANG).switched(1, back=True)
    assert (state.in_force, state.taken_back, state.failures, state.others) == (1, (2,), (), ("hang: train.py:7",))
    assert (state.made_step().proven, state.older) == ((1,), 0)
    assert state.switched(2, back=False).taken_back == ()


@given(st.lists(st.tuples(st.sampled_from(["error", "hang", "step", "update"]), st.integers(0, 3)), max_size=60))
def test_rollbacks_end(history: list[tuple[str, int]]) -> None:
    """Whatever happens, a version is taken back once, and only to one that made progress and was not taken back."""
    state, newest, back = CodeState(in_force=1), 1, []
    for what, number in history:
        if what == "step":
            state = state.made_step()
        elif what == "update":
            newest += 1
            state = state.switched(newest, back=False)
        else:
            failure = Failure(f"{what} {number}", ("n1",), FailureCause.PROGRAM)
            found = after_failure(state, failure, own_error=what == "error", new_step=False)
            state = state.failed(failure)
            if found is not None:
                assert found.number in state.proven
                assert found.number not in (*state.taken_back, state.in_force)
                back.append(state.in_force)
                state = state.switched(found.number, back=True)
    assert len(back) == len(set(back))


# -- in the policy ----------------------------------------------------------------------------------------------------


def situation(**changes: object) -> Situation:
    """The program of version 2 has ended by its own error on two nodes, without a new step."""
    verdict = Verdict(Conclusion.USER_CODE, "rank 0 ended with SyntaxError")
    base = Situation(
        verdict, ("n1", "n2"), 2, ended=True, exit_code=1, failure=ERROR, fruitless=1, code=UPDATED, resumes=True
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_job_goes_on_with_the_older_version_on_the_same_nodes() -> None:
    """Where it would be stopped otherwise; nobody is evicted."""
    plan = decide(situation())
    assert (plan.road, plan.evict, plan.code) == (Road.RESTART_IN_PLACE, (), 1)
    assert "No node is blamed" in plan.reason
    assert decide(situation(code=CodeState())).road is Road.STOP


def test_it_goes_before_the_limit_of_fruitless_attempts() -> None:
    """The older version has made progress."""
    assert decide(situation(fruitless=3)).code == 1


def test_where_only_the_script_resumes_it_is_requeued() -> None:
    """And runs the older version then."""
    plan = decide(situation(resumes=False))
    assert (plan.road, plan.evict, plan.code) == (Road.SEAT, (), 1)
    assert decide(situation(resumes=False, job=JobFacts(requeueable=False))).road is Road.RESTART_IN_PLACE


def test_a_dead_node_is_the_nodes_matter() -> None:
    """The code is not taken back for it."""
    plan = decide(situation(verdict=Verdict(Conclusion.UNDETERMINED, "?"), failure=HANG, dead_nodes=("n2",)))
    assert (plan.code, plan.evict) == (0, ("n2",))


def test_a_node_with_a_fault_of_its_own_is_left_as_well() -> None:
    """For its own reason; the suspects of the verdict stay."""
    plan = decide(
        situation(faulty_nodes={"n2": "n2 lost a GPU"}, healthy_spares=("n3",), allocation_nodes=("n1", "n2", "n3"))
    )
    assert (plan.road, plan.evict, plan.code) == (Road.SPARE_IN_ALLOCATION, ("n2",), 1)


def test_a_step_that_is_not_ours_keeps_its_code() -> None:
    """It cannot be started from another folder."""
    assert decide(situation(outside=True)).code == 0
