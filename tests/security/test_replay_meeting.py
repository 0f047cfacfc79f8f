"""A stranger beside the ranks of the reference replay: they meet with a secret, and who does not meet blames nobody."""

from __future__ import annotations

import asyncio
import sys

import pytest

from slurm_robust.stoptime.replay_groups import ReplayGroup, ReplayOutcome
from slurm_robust.stoptime.replay_results import MARK, StepOutput, result_of
from slurm_robust.stoptime.replay_run import ReplayPlace, ReplaySpec, _GroupStep, argv

GROUP = ReplayGroup(1, 0, ("n1", "n2"))
BEGAN = ("0: {0}began n1 7.1", "1: {0}began n2 7.1")
JOINING = ("0: {0}joining", "1: {0}joining")
FAILED = "srun: error: n2: task 1: Exited with exit code 1"


def outcome(code: int | None, *lines: str) -> ReplayOutcome:
    """How a group ended that said this."""
    output = StepOutput()
    for line in lines:
        output.take(line.format(MARK))
    return result_of(GROUP, output, code, {}, 60.0).outcome


@pytest.mark.parametrize("code", [1, None])
def test_ranks_that_tried_to_meet_and_did_not_blame_nobody(code: int | None) -> None:
    """They end, or hang; one may have joined whose partner was kept away."""
    last = (FAILED,) if code else ()
    assert outcome(code, *BEGAN, *JOINING, *last) is ReplayOutcome.NOT_RUN
    assert outcome(code, *BEGAN, *JOINING, "0: {0}joined", *last) is ReplayOutcome.NOT_RUN


@pytest.mark.parametrize("code", [1, None])
def test_a_rank_that_fails_before_or_after_they_met_counts(code: int | None) -> None:
    """No stranger has a part in either."""
    last = (FAILED,) if code else ()
    assert outcome(code, *BEGAN, JOINING[0], *last) is ReplayOutcome.FAILED
    assert outcome(code, *BEGAN, *JOINING, "0: {0}joined", "1: {0}joined", *last) is ReplayOutcome.FAILED


def test_the_secret_is_another_one_each_time_and_in_no_argument() -> None:
    """Tasks read it from stdin; a command of the user's gets none."""
    place = ReplayPlace("7", {"n1": "h1", "n2": "h2"}, 0, sys.executable)
    words = argv(GROUP, ReplaySpec(2), place, 20_000, 60.0)
    assert "--input=all" in words
    assert "--input=none" in argv(GROUP, ReplaySpec(2, command=("train",)), place, 20_000, 60.0)

    async def told() -> str:
        step = _GroupStep(GROUP)
        await step.start([sys.executable, "-c", "print('0:', input())"], {})
        assert step._watcher is not None
        await step._watcher
        return step.output.words["0"]

    first, second = asyncio.run(told()), asyncio.run(told())
    assert first != second
    assert len(first) == len(second) == 64
