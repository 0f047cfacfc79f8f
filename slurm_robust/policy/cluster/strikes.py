"""Counts strikes: how often a node was suspected and passed its check, by whom, and when it is drained for it. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_USERS = 2


@dataclass(frozen=True)
class Strike:
    """A job suspected the node, and the node passed its check.

    Attributes:
        job_id: The job; 0 if a test suspected the node, and not a job.
        user: The user of the job; empty if not known (any more).
        failed_test: A test that the node failed together with another node; empty if the strike rests on a claim alone.
    """

    job_id: int
    lineage: str
    user: str = ""
    failed_test: str = ""


def counted(strikes: Sequence[Strike]) -> int:
    """Return how many strikes count: the smaller of the numbers of different jobs and of different lineages.

    So a job does not count twice if it names several lineages (a job chooses its lineage), and a training does not
    count twice if it runs as several jobs.
    """
    return min(len({s.job_id for s in strikes}), len({s.lineage for s in strikes}))


def by_user(strikes: Sequence[Strike]) -> dict[str, int]:
    """Return how many strikes count for each user who is known."""
    users = sorted({s.user for s in strikes if s.user})
    return {user: counted([s for s in strikes if s.user == user]) for user in users}


def tested(strikes: Sequence[Strike]) -> bool:
    """Return whether a strike rests on a failed test."""
    return any(s.failed_test for s in strikes)


def _agreed(strikes: Sequence[Strike], needed: int) -> bool:
    """Return whether a failed test, or suspicions by different users, support as many strikes as are needed.

    One user counts for half of the strikes at most: otherwise the first strike of a second user would make all strikes
    of the first user count.
    """
    if tested(strikes):
        return True
    users = by_user(strikes)
    unknown = counted([s for s in strikes if not s.user])
    half = math.ceil(needed / 2)
    return len(users) >= LEAST_USERS and sum(min(half, count) for count in (*users.values(), unknown)) >= needed


def drain_reason(strikes: Sequence[Strike], needed: int, window_days: float) -> str:
    """Return why the strikes drain the node; empty if they do not."""
    count, users = counted(strikes), by_user(strikes)
    if count < needed or not _agreed(strikes, needed):
        return ""
    return f"{count} strikes in {window_days:g} days, from different jobs ({_shares(users) or 'users unknown'})"


def held_back(strikes: Sequence[Strike], needed: int) -> str:
    """Return why the node is not drained despite enough strikes, and what would drain it; empty if not so."""
    users = by_user(strikes)
    if counted(strikes) < needed or _agreed(strikes, needed):
        return ""
    whose = f"all by jobs of {next(iter(users))}" if users else "by users that are not known any more"
    whose = f"most by one user ({', '.join(users)})" if len(users) >= LEAST_USERS else whose
    return (
        f"{needed} strikes or more, {whose}: not drained, since one user's program may be at fault; "
        "the job of another user that suspects it, or a failed test, would drain it"
    )


def _shares(users: dict[str, int]) -> str:
    return ", ".join(f"{user} {count}" for user, count in Counter(users).most_common(6))


def jobs_that_suspect(strikes: Sequence[Strike], job_id: int, lineage: str) -> int:
    """Return how many different jobs have suspected the node, including this job (0 for none)."""
    claims = [s for s in strikes if s.job_id]
    return counted([*claims, Strike(job_id, lineage)] if job_id else claims)
