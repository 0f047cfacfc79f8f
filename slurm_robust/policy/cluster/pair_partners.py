"""Finds partners for tests of two nodes: free nodes for a suspect, and the next pair of a standby pool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_robust.config.site import Config
from slurm_robust.policy.cluster.node_states import (
    QUARANTINE_PREFIX,
    Cluster,
    busy_nodes,
    class_of,
    idle,
    in_reservations,
)
from slurm_robust.policy.cluster.standby_health import StandbyCheck, wants_check
from slurm_robust.policy.cluster.tested_pairs import Company
from slurm_robust.slurm.client import Node, Reservation
from slurm_robust.slurm.values import expand

PARTNER_WAIT_S = 1800.0
"""A standby node that passed its full check and finds no partner for so long counts as ready all the same."""


def shared_partitions(one: Node, other: Node) -> tuple[str, ...]:
    """Return partitions in which both nodes are of one hardware class: unlike nodes need not compute the same bits."""
    shared = (name for name in one.partitions if name in other.partitions)
    return tuple(name for name in shared if class_of(one, name) == class_of(other, name))


def company(
    suspect: Node,
    cluster: Cluster,
    known: Mapping[str, StandbyCheck],
    *,
    taken: frozenset[str],
    until_s: float,
    config: Config,
) -> Company:
    """Return the nodes that can be tested together with this suspect now.

    Args:
        suspect: A node in quarantine.
        cluster: The nodes, jobs and reservations that Slurm shows.
        known: The checks of standby nodes.
        taken: Nodes in quarantine or in another test.
        until_s: When the test has certainly ended.
        config: The site's configuration: how the names of pools and seats begin.
    """
    held = cluster.reservations
    pools = in_reservations(held, f"{config.standby.prefix}-")
    out = taken | in_reservations(held, config.seat.prefix) | in_reservations(held, QUARANTINE_PREFIX)
    out |= busy_nodes(cluster.jobs) | {suspect.name}
    free = [n for n in cluster.nodes.values() if n.name not in out and idle(n) and shared_partitions(suspect, n)]
    standby = [n.name for n in free if _ready(n, pools, cluster.unchecked, known)]
    # Nodes of a reservation that begins soon count, too: its job must not find the node in a test.
    reserved = in_reservations(r for r in held if r.start_at_s <= until_s)
    spare = [n for n in free if n.name not in reserved and "RESERVED" not in n.flags]
    spare.sort(key=lambda n: n.name, reverse=True)
    # Slurm keeps such nodes free for a job that is about to start.
    spare.sort(key=lambda n: "PLANNED" in n.flags)
    return Company(tuple(sorted(standby)), tuple(n.name for n in spare))


def in_spare_pools(reservations: Iterable[Reservation], pool_prefix: str, in_tests: frozenset[str]) -> frozenset[str]:
    """Return members of the pools with less than half of their members in tests (of a pool of one: with none).

    The members of the other pools are left to the jobs.
    """
    members = [frozenset(expand(r.nodes)) for r in reservations if r.name.startswith(f"{pool_prefix}-")]
    return frozenset(n for names in members if len(names & in_tests) < max(1, len(names) // 2) for n in names)


def _ready(node: Node, pools: frozenset[str], unchecked: frozenset[str], known: Mapping[str, StandbyCheck]) -> bool:
    """Return whether the node is a standby node that passed its own tests and is not being checked."""
    row = known.get(node.name)
    return node.name in pools and node.name not in unchecked and row is not None and row.job_id is None


@dataclass(frozen=True)
class PairsDue:
    """The tests that members of one pool still need beside their full check.

    Attributes:
        unmet: Members that still have to be tested with another node.
        pair: The two members that are tested together now, the new one first; None if no pair is.
        alone: Members for which the full check alone is enough → the reason.
    """

    unmet: tuple[str, ...] = ()
    pair: tuple[str, str] | None = None
    alone: Mapping[str, str] = field(default_factory=dict)


def pairs_due(
    members: Sequence[Node],
    known: Mapping[str, StandbyCheck],
    failed_with: Mapping[str, frozenset[str]],
    *,
    busy: frozenset[str],
    now_s: float,
    max_age_s: float,
) -> PairsDue:
    """Choose the next pair of one pool: a member that had no such test since it joined or booted, and a partner.

    Args:
        members: The members of the pool.
        known: The checks of the members.
        failed_with: Member → nodes with which it failed together: they are its last choice.
        busy: Nodes with a job, a seat or a test.
        now_s: The time.
        max_age_s: The maximum age of a full check; with 0 no member is checked.
    """
    fit = [n for n in members if n.name in known and not wants_check(n, known[n.name], now_s, max_age_s)]
    strangers = [n for n in fit if not known[n.name].met_at_s or n.boot_at_s > known[n.name].met_at_s]
    if not max_age_s or not strangers:
        return PairsDue()
    alone: dict[str, str] = {}
    for node in strangers:
        if failed_with.get(node.name):
            continue
        if len(members) == 1:
            alone[node.name] = "the only node of its pool: its full check counts alone"
        elif now_s - known[node.name].passed_at_s > PARTNER_WAIT_S:
            alone[node.name] = f"no member was free to meet it for {PARTNER_WAIT_S / 60:.0f} min: its full check counts"
    unmet = {n.name for n in strangers} - set(alone)
    free = [n.name for n in fit if idle(n) and n.name not in busy and known[n.name].job_id is None]
    pair = None
    if new := sorted(unmet & set(free), key=lambda n: (known[n].passed_at_s, n))[:1]:
        shunned = failed_with.get(new[0], frozenset())
        others = sorted((n for n in free if n != new[0]), key=lambda n: (n in shunned, n in unmet, n))
        pair = (new[0], others[0]) if others else None
    return PairsDue(tuple(sorted(unmet)), pair, alone)
