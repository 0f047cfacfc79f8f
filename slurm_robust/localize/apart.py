"""Finds the nodes that stand apart from the others, if no node is named as at fault: tests begin there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_robust.core.model import Verdict
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.layout import known_groups
from slurm_robust.localize.ranks import unfold
from slurm_robust.localize.stacks import merge
from slurm_robust.localize.votes.flight_recorder import where_waiting_ends
from slurm_robust.localize.votes.group import odd_ranks

MINORITY = 0.25
"""A class of stacks with fewer than this share of the ranks stands apart."""


@dataclass(frozen=True)
class Apart:
    """The nodes that stand apart from the others.

    Attributes:
        nodes: The nodes that the verdict suspects, for any reason; else the nodes where all waiting ends by the flight
            recorders; else the nodes of the smallest class of stacks.
        group: All nodes of the parallel group that the ranks outside the large classes share; empty for none.
    """

    nodes: tuple[str, ...] = ()
    group: tuple[str, ...] = ()


def standing_apart(evidence: Evidence, verdict: Verdict) -> Apart:
    """Find these nodes from the verdict and the last capture."""
    last = evidence.captures[-1] if evidence.captures else None
    odd = odd_ranks(last, known_groups(evidence)[0]) if last is not None and last.ranks else None
    group = odd.nodes if odd is not None and odd.group is not None else ()
    suspected = {s.node for s in verdict.suspects if s.node}
    ends = where_waiting_ends(tuple(evidence.recorder.values()), evidence.rank_nodes)
    return Apart(tuple(sorted(suspected or ends or _of_smallest_class(evidence))), group)


def _of_smallest_class(evidence: Evidence) -> set[str]:
    if not evidence.captures:
        return set()
    last = evidence.captures[-1]
    node_of = {r.rank: r.node for r in last.ranks}
    smallest = min((unfold(c.ranks) for c in merge.classes(last)), key=len, default=())
    if not 0 < len(smallest) < MINORITY * max(evidence.world_size, len(node_of)):
        return set()
    return {node_of[rank] for rank in smallest if rank in node_of}
