"""repeats: what a failure has to do with the earlier ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from situations import UNDETERMINED, culprit, situation

from slurm_robust.core.model import Failure, FailureCause, Road
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.repeats import alike, unrelated

LAUNCH = Failure("died: cuda_error: CUDA error: launch", ("n2",), FailureCause.WORDS, "cuda_error")
ACCESS = Failure("died: cuda_error: CUDA error: access", ("n2",), FailureCause.WORDS, "cuda_error")
QUEUE = Failure("died: runtime: RuntimeError: the queue is empty", ("n3",), FailureCause.WORDS, "runtime")
PLACED = replace(QUEUE, signature=f"{QUEUE.signature} at train.py:next")
"""The same message, read with its place: where all ranks print at once, some tracebacks are read half."""
PORT = Failure("died: address_in_use: EADDRINUSE", ("n4",), FailureCause.WORDS, "address_in_use")
KILLED = Failure("died: SIGKILL", ("n4",))


def test_one_broken_gpu_gives_other_messages_each_time() -> None:
    """Alike, though not the same; two messages of other kinds are not."""
    assert alike(LAUNCH, ACCESS)
    assert not alike(LAUNCH, QUEUE)
    assert not alike(QUEUE, replace(QUEUE, signature="died: runtime: RuntimeError: no such tensor"))


def test_only_failures_with_messages_can_be_unrelated() -> None:
    """A kill or a hang may be another sight of the same fault."""
    assert unrelated(LAUNCH, QUEUE)
    assert not unrelated(LAUNCH, KILLED)
    assert not unrelated(LAUNCH, ACCESS)


def test_two_kinds_of_cuda_error_on_one_node_leave_it() -> None:
    """At the second, whichever words it has."""
    blamed = culprit("n2", infrastructure=False)
    plan = decide(
        situation(blamed, ended=True, failure=ACCESS, earlier_failures=(LAUNCH,), restarts_in_place=1, fruitless=2)
    )
    assert plan.evict == ("n2",)


def test_unrelated_errors_on_two_nodes_let_the_job_go_on() -> None:
    """Each has its own restart in place; neither is the other one again elsewhere."""
    blamed = culprit("n3", infrastructure=False)
    plan = decide(
        situation(blamed, ended=True, failure=QUEUE, earlier_failures=(LAUNCH,), restarts_in_place=1, fruitless=2)
    )
    assert (plan.road, plan.evict) == (Road.RESTART_IN_PLACE, ())


@pytest.mark.parametrize(
    ("earlier", "fruitless", "stops"),
    [
        ((QUEUE, QUEUE), 3, True),
        ((QUEUE, PLACED), 3, True),
        ((LAUNCH, ACCESS), 3, False),
        ((LAUNCH, PORT), 3, False),
        ((KILLED, KILLED), 3, True),
    ],
)
def test_unrelated_failures_are_counted_apart(earlier: tuple[Failure, ...], fruitless: int, stops: bool) -> None:
    """Three of one kind stop the job; others do not count with them."""
    failed = situation(UNDETERMINED, ended=True, failure=replace(QUEUE, nodes=()), earlier_failures=earlier)
    plan = decide(replace(failed, fruitless=fruitless, restarts_in_place=len(earlier)))
    assert (plan.exit_code == 93) is stops, plan


def test_failures_that_differ_each_time_end_too() -> None:
    """A message with a random word in it would else never stop: twice the limit is the end."""
    earlier = tuple(replace(QUEUE, signature=f"died: {n}", nodes=()) for n in range(5))
    failed = situation(UNDETERMINED, ended=True, failure=replace(QUEUE, nodes=()), earlier_failures=earlier)
    assert decide(replace(failed, fruitless=5)).road is not Road.STOP
    plan = decide(replace(failed, fruitless=6))
    assert (plan.road, plan.exit_code) == (Road.STOP, 93)
