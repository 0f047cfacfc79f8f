"""The rule of dominant stacks: large classes are healthy, and the group that the others share is suspected.

It is ByteRobust's (SOSP 2025). It isolates fast and evicts more than it must, and it is wrong where the victims are
the many and of several kinds, or where the program is at fault; so it is one vote, and what it costs is told.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from slurm_robust.localize.evidence import Capture, Evidence
from slurm_robust.localize.layout import Groups, ParallelGroup, known_groups
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.process_tree import rank_place
from slurm_robust.model import Conclusion, Suspect, Verdict
from slurm_robust.text import shortened

DOMINANT_SHARE = 0.5
"""A class with at least this share of the largest one's ranks is dominant too."""
CONFIDENCE_GROUP = 0.4
"""Of a whole group by this rule alone."""


@dataclass(frozen=True)
class Outside:
    """Ranks outside the dominant classes, and what they share.

    Attributes:
        group: The smallest parallel group that holds them all; None where none does.
        nodes: Nodes to leave: the group's, or the outliers' own where they are on one node.
        cost: How many of those nodes hold no outlier.
    """

    ranks: tuple[int, ...]
    group: ParallelGroup | None
    nodes: tuple[str, ...]
    cost: int


def outliers(capture: Capture, groups: Groups) -> Outside | None:
    """Lay the classes of stacks over the groups; None where all classes are dominant."""
    places = {r.rank: rank_place(r).label for r in capture.ranks}
    sizes = Counter(places.values())
    most = max(sizes.values(), default=0)
    odd = tuple(sorted(r for r, label in places.items() if sizes[label] < DOMINANT_SHARE * most))
    if not odd:
        return None
    node_of = {r.rank: r.node for r in capture.ranks}
    own = {node_of[rank] for rank in odd}
    if len(own) == 1:
        return Outside(odd, groups.shared(odd), tuple(own), 0)
    group = groups.shared(odd)
    if group is None:
        return Outside(odd, None, (), 0)
    nodes = {node_of[rank] for rank in group.ranks if rank in node_of}
    return Outside(odd, group, tuple(sorted(nodes)), len(nodes - own))


def judge_dominant(evidence: Evidence) -> Verdict | None:
    """What the rule says by itself; None without a capture or without outliers."""
    if not evidence.captures:
        return None
    capture = evidence.captures[-1]
    found = outliers(capture, known_groups(evidence)[0])
    if found is None:
        return None
    who = name(found.ranks)
    if not found.nodes:
        reason = f"{who} stand apart from the dominant stacks, and share no parallel group that is known"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("the parallel layout: --layout tp=…,pp=…,dp=…",))
    shared = f"share the {found.group.told}" if found.group is not None else "are on one node"
    suspects = []
    for node in found.nodes:
        members = tuple(r.rank for r in capture.ranks if r.node == node)
        confidence = round(CONFIDENCE_GROUP / len(found.nodes), 3)
        suspects.append(Suspect(node, members, confidence, f"{node}: {who} stand apart and {shared}"))
    detail = f"leaving {shortened(', '.join(found.nodes), 60)} costs {found.cost} nodes without an outlier"
    reason = f"{who} stand apart from the dominant stacks and {shared}"
    return Verdict(Conclusion.CULPRIT, reason, tuple(suspects), detail=detail)
