"""Exceptions that living ranks have raised: which of them are their end."""

from __future__ import annotations

import pytest
from supervised import FakeClock
from torchrun_attempt import prints

from slurm_robust.supervise.watch.attempt_state import AttemptState

HOOK = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 9, in <module>
[rank1]:     main()
[rank1]: TypeError: boom
"""
CHAINED = """[rank1]: Traceback (most recent call last):
[rank1]: KeyError: 'x'

[rank1]: During handling of the above exception, another exception occurred:

[rank1]: Traceback (most recent call last):
[rank1]: TypeError: boom
"""


def test_the_last_traceback_of_a_rank_is_what_it_has_raised(attempt: AttemptState, clock: FakeClock) -> None:
    """With its time, without what the rank had printed before, and of ranks of this attempt alone."""
    prints(attempt, "[rank1]: warming up")
    clock.at_s += 60
    prints(attempt, HOOK + "[rank77]: Traceback (most recent call last):\n[rank77]: KeyError: 'x'")
    assert list(attempt.raised) == [1]
    assert attempt.raised[1].at_s == clock.at_s
    assert attempt.raised[1].lines[0].endswith("Traceback (most recent call last):")
    assert attempt.raised[1].lines[-1] == "[rank1]: TypeError: boom"


def test_a_chain_is_kept_whole(attempt: AttemptState) -> None:
    """The first exception of a chain may be the root."""
    prints(attempt, HOOK.replace("boom", "older"))
    prints(attempt, CHAINED)
    assert [line for line in attempt.raised[1].lines if "Error" in line] == [
        "[rank1]: KeyError: 'x'",
        "[rank1]: TypeError: boom",
    ]


@pytest.mark.parametrize(
    ("later", "is_end"),
    [
        ("[rank1]: epoch 3, loss 2.0", False),
        ("[rank1]:[W1122 03:04:05 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed", True),
        ("[rank0]: the loss is 2.0", True),
        ("the loss is 2.0", True),
    ],
)
def test_a_rank_that_writes_on_has_gone_on(attempt: AttemptState, clock: FakeClock, later: str, is_end: bool) -> None:
    """A handler of its program printed the exception; what PyTorch itself writes in a teardown is no sign of life."""
    prints(attempt, HOOK)
    clock.at_s += 5
    prints(attempt, later)
    assert (1 in attempt.raised) is is_end


def test_a_rank_that_makes_a_step_has_gone_on(attempt: AttemptState, clock: FakeClock) -> None:
    """By the log, where ranks report no progress by calls."""
    prints(attempt, "step 10 loss 2.0\nstep 11 loss 2.0")
    clock.at_s += 5
    prints(attempt, HOOK)
    assert 1 in attempt.raised
    clock.at_s += 5
    prints(attempt, "step 12 loss 2.0")
    assert attempt.raised == {}
