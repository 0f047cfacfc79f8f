"""What the lines of srun say about a group, in the words of a real Slurm."""

from __future__ import annotations

import pytest

from slurm_robust.stoptime.replay_groups import ReplayGroup, ReplayOutcome, ReplayResult
from slurm_robust.stoptime.replay_results import MARK, StepOutput, compared, result_of

GROUP = ReplayGroup(1, 0, ("n1", "n2"))
BEGAN = f"0: {MARK}began n1 5.3\n2: {MARK}began n2 5.3"
CANCELLED = "slurmstepd-n1: error: *** STEP 5.3 ON n1 CANCELLED AT 2026-11-23T03:05:11 ***"
KILLED = "srun: error: n1: task 0: Killed"


def said(text: str) -> StepOutput:
    """What a step with these lines has said."""
    output = StepOutput()
    for line in text.splitlines():
        output.take(line)
    return output


@pytest.mark.parametrize(
    ("text", "code", "outcome", "reason"),
    [
        (BEGAN, 0, "passed", ""),
        (
            (
                f"{BEGAN}\n2: loss nan\n0: waits\nsrun: error: n2: tasks 2-3: Exited with exit code 3\n{CANCELLED}\n"
                "2: RuntimeError: boom\n0: killed\nsrun: error: n1: tasks 0-1: Terminated"
            ),
            143,
            "failed",
            "n2: tasks 2-3: Exited with exit code 3; its last line: RuntimeError: boom",
        ),
        (f"{BEGAN}\nsrun: error: n2: task 2: Killed", 137, "failed", "n2: task 2: Killed"),
        (f"{BEGAN}\n0: step 4\n2: step 3", None, "failed", "it hung: no end within 20 s; its last line: step 3"),
        (f"{BEGAN}\n{CANCELLED}\nsrun: error: n1: tasks 0-1: Killed", 137, "not_run", "Slurm ended its step"),
        (
            "srun: error: Unable to create step for job 1: Invalid generic resource",
            1,
            "not_run",
            "its step did not start on n1, n2: srun: error: Unable to create step for job 1: Invalid generic resource",
        ),
        (f"0: {MARK}began n1 5.3", None, "not_run", "its step did not start on n2: not within 20 s"),
        (
            f"{BEGAN}\n0: RuntimeError: bind: Address already in use\nsrun: error: n1: task 0: Exited with exit code 1",
            1,
            "not_run",
            "a port is in use; its last line: RuntimeError: bind: Address already in use",
        ),
        (
            f"{BEGAN}\n2: CUDA out of memory. Tried 2 GiB\nsrun: error: n2: task 2: Exited with exit code 1",
            1,
            "not_run",
            "it found no memory; its last line: CUDA out of memory. Tried 2 GiB",
        ),
        (
            f"{BEGAN}\nsrun: error: n2: task 2: Out Of Memory",
            1,
            "not_run",
            "it found no memory",
        ),
        (
            f"0: {MARK}began n1 5.3\nsrun: error: Task launch for StepId=5.3 failed on node n2: x\n{KILLED}",
            137,
            "not_run",
            "its step did not start on n2: srun: error: Task launch for StepId=5.3 failed on node n2: x",
        ),
        (
            f"{BEGAN}\nsrun: error: Node failure on n2\nsrun: error: n1: tasks 0-1: Killed",
            137,
            "not_run",
            "Slurm lost a node during the replay: srun: error: Node failure on n2",
        ),
    ],
)
def test_how_a_step_ended(text: str, code: int | None, outcome: str, reason: str) -> None:
    """The first task that fails counts, and the last line of that task; what never ran is not its nodes' fault."""
    result = result_of(GROUP, said(text), code, {}, 20.0)
    assert (result.outcome.value, result.reason) == (outcome, reason)


def test_a_time_that_the_budget_has_cut_short_blames_nobody() -> None:
    """Groups that passed needed half as long; one whose task has failed by itself failed all the same."""
    hung = result_of(GROUP, said(BEGAN), None, {}, 12.0, cut=True)
    assert (hung.outcome, hung.reason) == (ReplayOutcome.NOT_RUN, "no end within the 12 s that the budget left")
    text = f"{BEGAN}\nsrun: error: n2: task 2: Exited with exit code 3"
    assert result_of(GROUP, said(text), None, {}, 12.0, cut=True).outcome is ReplayOutcome.FAILED


def test_a_node_that_left_is_absent_whatever_the_step_says() -> None:
    """Its agent fell silent: the others' errors come of that."""
    text = f"{BEGAN}\nsrun: error: n1: task 0: Exited with exit code 1"
    result = result_of(GROUP, said(text), 1, {"n2": "n2 left the test"}, 20.0)
    assert (result.outcome, result.reason, result.absent) == (
        ReplayOutcome.NOT_RUN,
        "n2 left the test",
        frozenset({"n2"}),
    )


def digests(*found: str) -> list[ReplayResult]:
    """The results of groups on the same hardware that computed these."""
    outputs = [said(f"0: {MARK}digest {text} kind A") for text in found]
    passed = [ReplayResult(ReplayGroup(1, k, (f"n{k}",)), ReplayOutcome.PASSED) for k in range(len(found))]
    return compared(passed, outputs, [])


def test_the_replica_with_other_bits_than_most_failed() -> None:
    """Of three. Of two that differ, and of three that all differ, each one failed: that names nobody."""
    judged = digests("aa", "aa", "bb")
    assert [r.outcome.value for r in judged] == ["passed", "passed", "failed"]
    assert judged[2].reason == "its replica computed other bits than 2 of 3 replicas of the same kind"
    assert [r.outcome.value for r in digests("aa", "bb")] == ["failed", "failed"]
    assert [r.outcome.value for r in digests("aa", "bb", "cc")] == ["failed"] * 3
    assert [r.outcome.value for r in digests("aa")] == ["passed"]


def test_bits_are_compared_within_a_class_and_with_earlier_waves() -> None:
    """Another kind of device computes other bits; a group alone in its wave is judged by those before."""
    other = said(f"0: {MARK}digest bb kind B")
    earlier = [said(f"0: {MARK}digest aa kind A") for _ in range(2)]
    result = ReplayResult(GROUP, ReplayOutcome.PASSED)
    assert compared([result], [other], earlier)[0].outcome is ReplayOutcome.PASSED
    late = said(f"0: {MARK}digest bb kind A")
    assert compared([result], [late], earlier)[0].outcome is ReplayOutcome.FAILED
