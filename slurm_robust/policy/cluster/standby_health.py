"""Says which standby nodes are known to be fit, and which are checked next. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.policy.cluster.node_states import idle
from slurm_robust.slurm.client import Node

SUSPECT_S = 86400.0
"""For so long, a node that stayed in service as a suspect is the last choice for a pool and for a seat."""
JOINS_S = 15.0
"""A free suspect is kept from seats for at least this long: a pool may take it, and has it checked."""
AHEAD_S = 60.0
"""A check with a time further ahead than this was noted before the clock was set back: its age is unknown."""


@dataclass(frozen=True)
class StandbyCheck:
    """The state of a member's full check.

    Attributes:
        job_id: The job of the check that is under way; None if no check is.
        begun_at_s: When that check was submitted; `ended_at_s`: when the last check ended, 0 for never.
        passed_at_s: When a check last passed, 0 for never.
        tries: How many checks in a row were inconclusive.
        word: The result of the last check.
        met_at_s: When the node was tested together with another node, or the test was given up; 0 for never.
    """

    node: str
    job_id: int | None = None
    begun_at_s: float = 0.0
    ended_at_s: float = 0.0
    passed_at_s: float = 0.0
    tries: int = 0
    next_try_at_s: float = 0.0
    word: str = ""
    met_at_s: float = 0.0


@dataclass(frozen=True)
class Suspicion:
    """The last time, `at_s`, at which `job` left this node as a suspect and the node stayed in service."""

    node: str
    at_s: float
    job: str


def doubted(suspected: Mapping[str, Suspicion], known: Mapping[str, StandbyCheck]) -> frozenset[str]:
    """Return the suspects that have not passed a full check since they were suspected."""
    return frozenset(n for n, s in suspected.items() if n not in known or known[n].passed_at_s <= s.at_s)


def withheld(
    suspected: Mapping[str, Suspicion],
    known: Mapping[str, StandbyCheck],
    *,
    members: frozenset[str],
    now_s: float,
    limit_s: float,
) -> frozenset[str]:
    """Return the suspects that no seat takes yet: their full check comes first.

    The check may never take place. So members of a pool are withheld for `limit_s` at most, and other nodes only until
    a pool may have taken them (`JOINS_S`).
    """
    return frozenset(
        n
        for n in doubted(suspected, known)
        if 0 <= now_s - suspected[n].at_s < (limit_s if n in members else min(limit_s, JOINS_S))
    )


@dataclass(frozen=True)
class ChecksDue:
    """Members of one pool whose check is missing or too old, and members whose check begins now."""

    unchecked: tuple[str, ...]
    begin: tuple[str, ...]


def wants_check(node: Node, known: StandbyCheck | None, now_s: float, max_age_s: float) -> bool:
    """Return whether the member never passed a check, passed the last one too long ago, or has booted since."""
    if known is None or not known.passed_at_s:
        return True
    age_s = now_s - known.passed_at_s
    return age_s > max_age_s or age_s < -AHEAD_S or node.boot_at_s > known.passed_at_s


def due(
    members: Sequence[Node], known: Mapping[str, StandbyCheck], *, busy: frozenset[str], now_s: float, max_age_s: float
) -> ChecksDue:
    """Choose the next checks of one pool's members. Half of a pool stays ready; members that never passed come first.

    Nodes that are `busy` have a job or a seat. A `max_age_s` of 0 checks no member.
    """
    if not max_age_s:
        return ChecksDue((), ())
    rows = {n.name: known.get(n.name, StandbyCheck(n.name)) for n in members}
    wanting = [n for n in members if wants_check(n, known.get(n.name), now_s, max_age_s)]
    free = max(1, len(members) // 2) - sum(1 for row in rows.values() if row.job_id is not None)
    able = [
        n.name
        for n in wanting
        if idle(n) and n.name not in busy and rows[n.name].job_id is None and now_s >= rows[n.name].next_try_at_s
    ]
    able.sort(key=lambda name: (rows[name].passed_at_s, name))
    return ChecksDue(tuple(sorted(n.name for n in wanting)), tuple(able[: max(0, free)]))
