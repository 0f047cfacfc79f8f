"""Limits how many nodes may go out of service before a person has to decide: the breaker. Pure.

A bad driver roll-out makes every node fail its checks; without a bound, daemon, prologs and health checks would drain
the whole site. Drains by the daemon, by prologs and by health checks all count (their reasons have our prefix), and so
do nodes in quarantine. An open breaker stays open until `srobust breaker reset`.

Claims of jobs have bounds of their own (`kept_for_claim`). A claim that would pass a bound does not open the breaker,
since the programs of users must not keep broken nodes in service: the claim takes no node out of service, and its job
goes on without its suspects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.config.site import BreakerConfig
from slurm_robust.core.text import shortened

ALWAYS_ALLOWED = 2
"""At least this many nodes of a partition may be out, however small the partition is."""


CLAIM_WINDOW_S = 3600.0
"""Claims of a user count for `quarantine.max_per_user_hour` if they are younger than this."""
_KEPT_FOR_GRADE = {"weak": "the job's evidence is weak", "none": "the job has no evidence against them"}
"""Grade of a claim's evidence → the reason why the suspects of the claim stay in service."""


@dataclass(frozen=True)
class Drain:
    """A node that this project took out of service, noticed at `at_s`; `out` tells whether the node is still out."""

    node: str
    at_s: float
    out: bool = True


@dataclass(frozen=True)
class ClaimedNode:
    """A node that was taken out of service at `at_s` because a job of `user` named it."""

    node: str
    user: str
    at_s: float


@dataclass(frozen=True)
class TakenOut:
    """Nodes that this project took out of service.

    Attributes:
        drains: Drains with our prefix, also drains that a person has ended.
        quarantined: Nodes in quarantine now, except nodes that came there from a drain, for a repair.
        claimed: Nodes that claims of jobs took out within the last hour or the breaker's window, also if such a node
            is back in service.
    """

    drains: Sequence[Drain] = ()
    quarantined: Sequence[Drain] = ()
    claimed: Sequence[ClaimedNode] = ()

    @property
    def out(self) -> tuple[Drain, ...]:
        """All drains and quarantines that count in the breaker.

        A quarantine that ended well does not count: it must not keep a broken node in service.
        """
        return (*self.drains, *self.quarantined)

    @property
    def nodes_out(self) -> frozenset[str]:
        """Names of the nodes that are out of service now."""
        return frozenset(drain.node for drain in self.out if drain.out)


@dataclass(frozen=True)
class ClaimedSuspects:
    """The nodes that a job's claim asks to take out of service.

    Attributes:
        nodes: The suspects.
        user: The user of the job.
        grade: The grade of the job's evidence, as the claim has it; empty if the claim has none.
    """

    nodes: frozenset[str]
    user: str
    grade: str = ""


@dataclass(frozen=True)
class ClaimBounds:
    """The bounds on claims.

    Attributes:
        partitions: Members of each partition.
        breaker: The bounds of the breaker.
        max_per_user_hour: `quarantine.max_per_user_hour`.
        reset_at_s: When the breaker was last reset.
    """

    partitions: Mapping[str, frozenset[str]]
    breaker: BreakerConfig
    max_per_user_hour: int
    reset_at_s: float = 0.0


def kept_for_claim(suspects: ClaimedSuspects, taken: TakenOut, bounds: ClaimBounds, now_s: float) -> str:
    """Return why all suspects of a claim stay in service; empty if all of them may be taken out."""
    if suspects.grade in _KEPT_FOR_GRADE:
        return _KEPT_FOR_GRADE[suspects.grade]
    more, user, most = suspects.nodes - taken.nodes_out, suspects.user, bounds.max_per_user_hour
    if not more:
        return ""
    before = sum(1 for c in taken.claimed if c.user == user and c.at_s > now_s - CLAIM_WINDOW_S)
    if before + len(more) > most:
        nodes = f"{before} node{'' if before == 1 else 's'}"
        return (
            f"claims of {user}'s jobs have taken {nodes} out of service within an hour, and "
            f"quarantine.max_per_user_hour is {most}"
        )
    ended = [Drain(c.node, c.at_s, out=False) for c in taken.claimed]
    known = ([*taken.out, *ended], bounds.partitions, bounds.breaker)
    return over_limit(*known, now_s=now_s, reset_at_s=bounds.reset_at_s, more=more)


def over_limit(
    drains: Iterable[Drain],
    partitions: Mapping[str, frozenset[str]],
    config: BreakerConfig,
    *,
    now_s: float,
    reset_at_s: float = 0.0,
    more: frozenset[str] = frozenset(),
) -> str:
    """Return why it would be too much to take `more` nodes of these `partitions` out; empty if it would not.

    A person has accepted the `drains` before `reset_at_s`, when the breaker was last reset.
    Without `more`, judge what was taken out so far: it is allowed to reach a bound, but not to pass it.
    """
    drains = list(drains)
    counted = {d.node for d in drains if d.at_s > reset_at_s and d.at_s > now_s - config.window_s}
    taken = counted | more
    if len(taken) > config.max_drains and (not more or more - counted):
        return (
            f"{len(taken)} nodes {'would be' if more else 'went'} out within {config.window_s:.0f} s, and "
            f"breaker.max_drains is {config.max_drains}"
        )
    before = {d.node for d in drains if d.at_s > reset_at_s and d.out}
    for name, members in sorted(partitions.items()):
        out = (before | more) & members
        allowed = allowed_out(members, config)
        if len(out) > allowed and (not more or out & more - before):
            return (
                f"{len(out)} of {len(members)} nodes of partition {name} {'would be' if more else 'are'} out, and "
                f"breaker.max_partition_share is {config.max_partition_share:g}"
            )
    return ""


def headroom(
    drains: Iterable[Drain],
    partitions: Mapping[str, frozenset[str]],
    config: BreakerConfig,
    *,
    now_s: float,
    reset_at_s: float = 0.0,
) -> dict[str, int]:
    """Return how many more nodes may be drained before a bound is reached, for each node of `partitions`."""
    drains = [d for d in drains if d.at_s > reset_at_s]
    counted = {d.node for d in drains if d.at_s > now_s - config.window_s}
    out_now = {d.node for d in drains if d.out}
    left: dict[str, int] = {}
    for members in partitions.values():
        allowed = allowed_out(members, config)
        here = max(0, min(config.max_drains - len(counted), allowed - len(out_now & members)))
        for node in members:
            left[node] = min(left.get(node, here), here)
    return left


def allowed_out(members: frozenset[str], config: BreakerConfig) -> int:
    """Return how many nodes of a partition may be out: at least two in a small partition, unless the share is 0.

    A fifth of nine nodes is one: the second fault within days would already need a person.
    """
    share = config.max_partition_share
    return max(ALWAYS_ALLOWED, math.floor(share * len(members))) if share else 0


def kept_in_service(nodes: Sequence[str], why: str = "the breaker is open") -> str:
    """Return the sentence that says which suspects stay in service, and why."""
    stay, it = ("stays", "it") if len(nodes) == 1 else ("stay", "them")
    names = shortened(", ".join(nodes), 60)
    return f"{why}: {names} {stay} in service, and only this job leaves {it} out"
