"""Computes how long an outage of something that nodes share is waited for: each pause is twice the last. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.core.model import Failure, FailureCause

FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 300.0


def attempts_lost(earlier: Sequence[Failure]) -> int:
    """Return how many attempts in a row an outage has ended, before this one."""
    count = 0
    for failure in reversed(earlier):
        if failure.cause is not FailureCause.SHARED:
            break
        count += 1
    return count


def waited_s(attempts: int) -> float:
    """Return the sum of the pauses after so many attempts, in seconds."""
    return sum(min(FIRST_PAUSE_S * 2.0**number, MAX_PAUSE_S) for number in range(attempts))


def pause_s(attempts: int, limit_s: float) -> float:
    """Return the pause after one more attempt; 0 once all pauses together have reached the limit."""
    return max(0.0, min(FIRST_PAUSE_S * 2.0 ** min(attempts, 30), MAX_PAUSE_S, limit_s - waited_s(attempts)))
