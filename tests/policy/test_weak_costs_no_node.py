"""Weak evidence costs no node, however often it comes: from what was seen of a rank to what is done about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import situation

from slurm_robust.core.model import Conclusion, Failure, Grade, Road, Verdict
from slurm_robust.localize.evidence import (
    Capture,
    CapturedProcess,
    CapturedThread,
    Evidence,
    Progress,
    RankCapture,
    StackFrame,
)
from slurm_robust.localize.failure import failure_of
from slurm_robust.localize.judge import judge
from slurm_robust.policy.job.consequences import Silence
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.ladder import LadderOptions
from slurm_robust.policy.job.situation import JobFacts

SITE = "/opt/env/lib/python3.11/site-packages/"
MAIN = StackFrame("main", "/home/u/train.py", 57)
COLLECTIVE = (MAIN, StackFrame("all_reduce", f"{SITE}torch/distributed/distributed_c10d.py", 3252))
OUTSIDE = {
    "socket": ((MAIN, StackFrame("recv_into", "/usr/lib/python3.11/socket.py", 706)), "tcp_recvmsg"),
    "file": ((MAIN, StackFrame("wait_for_shards", "/home/u/data.py", 12)), "fuse_dev_do_read"),
    "http server": ((MAIN, StackFrame("get", f"{SITE}requests/api.py", 73)), "poll_schedule_timeout"),
    "timer": ((MAIN, StackFrame("back_off", "/home/u/data.py", 14)), "hrtimer_nanosleep"),
}


def rank_at(number: int, stack: tuple[StackFrame, ...], wchan: str = "") -> RankCapture:
    """One rank on a node of its own."""
    main = CapturedThread(stack, "MainThread", 100, main=True)
    return RankCapture(
        number, f"n{number + 1}", (CapturedProcess(100, 1, "S", "train", 5.0, 10, wchan, (main,)),), Progress(20)
    )


def hang(outside: str) -> tuple[Verdict, Failure]:
    """The first rank waits for something outside the job for ten minutes, and all others for it."""
    first = rank_at(0, *OUTSIDE[outside])
    ranks = (first, *(rank_at(n, COLLECTIVE) for n in (1, 2, 3)))
    seen = Evidence(4, {n: f"n{n + 1}" for n in range(4)}, tuple(Capture(1000.0 + 60 * t, ranks) for t in range(11)))
    verdict = judge(seen)
    failure = failure_of(seen, verdict)
    assert failure is not None
    return verdict, failure


@pytest.mark.parametrize("outside", OUTSIDE)
def test_the_first_rank_waits_for_something_outside_the_job(outside: str) -> None:
    """It is named every time, and weakly."""
    verdict, _ = hang(outside)
    assert verdict.conclusion is Conclusion.CULPRIT
    assert [s.node for s in verdict.suspects] == ["n1"]
    assert verdict.grade is Grade.WEAK


def test_the_same_hang_again_and_again() -> None:
    """Restarted in place once; then its node is tested, and what no test finds is never left."""
    verdict, failure = hang("http server")
    silence = Silence(600.0)
    ladder = LadderOptions(enabled=True)
    first = decide(situation(verdict, failure=failure, silence=silence, ladder_options=ladder))
    assert first.road is Road.RESTART_IN_PLACE
    again = situation(
        verdict, failure=failure, silence=silence, ladder_options=ladder, earlier_failures=(failure,),
        older_failures=(failure,), restarts_in_place=1,
    )  # fmt: skip
    assert not decide(again).evict


HISTORIES = st.fixed_dictionaries(
    {
        "restarts_in_place": st.integers(0, 4),
        "fruitless": st.integers(0, 2),
        "ended": st.booleans(),
        "action_limit_reached": st.booleans(),
        "outside": st.booleans(),
        "over": st.booleans(),
        "resumes": st.sampled_from([True, False, None]),
        "exit_code": st.sampled_from([None, 0, 1]),
        "job": st.builds(JobFacts, requeueable=st.booleans(), requeued=st.booleans()),
        "ladder_options": st.builds(LadderOptions, enabled=st.booleans()),
        "silence": st.builds(Silence, st.sampled_from([10.0, 200.0, 2000.0])),
    }
)


@given(st.sampled_from(sorted(OUTSIDE)), st.integers(0, 4), st.integers(0, 2), HISTORIES)
def test_no_history_makes_it_cost_a_node(outside: str, earlier: int, older: int, history: dict[str, object]) -> None:
    """In the same allocation, after a requeue, past the limit, once the attempt has ended: nobody is left."""
    verdict, failure = hang(outside)
    before = {"earlier_failures": (failure,) * earlier, "older_failures": (failure,) * older}
    assert not decide(situation(verdict, failure=failure, **before, **history)).evict


def test_the_grade_alone_makes_the_difference() -> None:
    """The same failure again on the same node, by strong evidence: there it is left."""
    verdict, failure = hang("socket")
    again = situation(
        verdict, failure=failure, earlier_failures=(failure,), restarts_in_place=1, silence=Silence(600.0)
    )
    assert not decide(again).evict
    assert decide(replace(again, verdict=replace(verdict, grade=Grade.STRONG))).evict == ("n1",)
