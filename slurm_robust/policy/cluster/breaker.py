"""The breaker: how many nodes we may take out before a person has to look. Pure.

A bad driver roll-out makes every node look broken; without a bound, the daemon, the prologs and the health checks would
drain a fleet. Drains of all of them are counted, since they all carry our prefix. Once open it stays open until
`srobust breaker reset`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_robust.config import BreakerConfig


@dataclass(frozen=True)
class Drain:
    """A node that went out of service by our doing (any part of ours), seen at `at_s`; `out` while it still is."""

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
    planned: bool = True,
) -> str:
    """Why taking `more` nodes out would be too much, or an empty text where it is not.

    Args:
        drains: What was drained with our prefix; those before `reset_at_s` were accepted by a person.
        partitions: Name → its nodes.
        config: The site's bounds.
        now_s: The time, seconds since the epoch.
        reset_at_s: When a person last reset the breaker.
        more: Nodes about to be drained; empty to judge what is already there.
        planned: False to judge what is there: then reaching a bound is allowed and only passing it is not.
    """
    drains = list(drains)
    counted = {d.node for d in drains if d.at_s > reset_at_s and d.at_s > now_s - config.window_s}
    taken = counted | more
    if len(taken) > config.max_drains and (not planned or more - counted):
        return (
            f"{len(taken)} nodes would be out within {config.window_s:.0f} s, and breaker.max_drains is "
            f"{config.max_drains}"
        )
    out_now = {d.node for d in drains if d.at_s > reset_at_s and d.out} | more
    for name, members in sorted(partitions.items()):
        out = out_now & members
        # A small partition may always lose one, or nothing could ever be done there.
        allowed = max(1, math.floor(config.max_partition_share * len(members))) if config.max_partition_share else 0
        if len(out) > allowed and (not planned or out & more - counted):
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
    """How many more nodes may go out before a bound is reached, for each node of `partitions`; arguments as above."""
    drains = [d for d in drains if d.at_s > reset_at_s]
    counted = {d.node for d in drains if d.at_s > now_s - config.window_s}
    out_now = {d.node for d in drains if d.out}
    left: dict[str, int] = {}
    for members in partitions.values():
        allowed = max(1, math.floor(config.max_partition_share * len(members))) if config.max_partition_share else 0
        here = max(0, min(config.max_drains - len(counted), allowed - len(out_now & members)))
        for node in members:
            left[node] = min(left.get(node, here), here)
    return left
