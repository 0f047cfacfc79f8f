"""The breaker: how many nodes may be drained before a person has to decide. Pure.

A bad driver roll-out makes every node fail its checks; without a bound, daemon, prologs and health checks would drain
the whole site. The drains of all of them count, since all have our prefix. Once open it stays open until
`srobust breaker reset`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.config import BreakerConfig
from slurm_robust.text import shortened

ALWAYS_ALLOWED = 2
"""So many nodes of a partition may be out, however small the partition is."""


@dataclass(frozen=True)
class Drain:
    """A node that this project drained, noticed at `at_s`; `out` while it is still out of service."""

    node: str
    at_s: float
    out: bool = True


def over_limit(
    drains: Iterable[Drain],
    partitions: Mapping[str, frozenset[str]],
    config: BreakerConfig,
    *,
    now_s: float,
    reset_at_s: float = 0.0,
    more: frozenset[str] = frozenset(),
) -> str:
    """Why draining `more` nodes of these `partitions` would be too much; empty if it is not.

    The `drains` have our prefix; a person has accepted those before `reset_at_s`, when the breaker was last reset.
    Without `more`, the drains that were made are judged: reaching a bound is allowed, passing it is not.
    """
    drains = list(drains)
    counted = {d.node for d in drains if d.at_s > reset_at_s and d.at_s > now_s - config.window_s}
    taken = counted | more
    if len(taken) > config.max_drains and (not more or more - counted):
        return (
            f"{len(taken)} nodes would be out within {config.window_s:.0f} s, and breaker.max_drains is "
            f"{config.max_drains}"
        )
    out_now = {d.node for d in drains if d.at_s > reset_at_s and d.out} | more
    for name, members in sorted(partitions.items()):
        out = out_now & members
        allowed = allowed_out(members, config)
        if len(out) > allowed and (not more or out & more - counted):
            return (
                f"{len(out)} of {len(members)} nodes of partition {name} would be out, and "
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
    """How many more nodes may be drained before a bound is reached, by node of `partitions`; arguments as above."""
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
    """How many nodes of a partition may be out: in a small one always two, unless the share is 0.

    A fifth of nine nodes is one: the second fault within days would already need a person.
    """
    share = config.max_partition_share
    return max(ALWAYS_ALLOWED, math.floor(share * len(members))) if share else 0


def kept_in_service(nodes: Sequence[str]) -> str:
    """What is said of suspects that an open breaker keeps in service."""
    stay, it = ("stays", "it") if len(nodes) == 1 else ("stay", "them")
    names = shortened(", ".join(nodes), 60)
    return f"the breaker is open: {names} {stay} in service, and only this job leaves {it} out"
