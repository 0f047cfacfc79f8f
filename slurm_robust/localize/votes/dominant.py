"""Reads the classes of stacks for the vote on groups: names the ranks apart from the large classes, and their group.

ByteRobust's rule (SOSP 2025): large classes are healthy, and the smallest group that the others share is suspected. It
isolates fast and evicts more than it must, and it is wrong where the victims are the many and of several kinds, or
where the program is at fault. So it names nobody by itself (`group` uses it), and what it costs is part of the detail.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from slurm_robust.localize.evidence import Capture
from slurm_robust.localize.layout import Groups, ParallelGroup
from slurm_robust.localize.stacks.process_tree import rank_place

DOMINANT_SHARE = 0.5
"""A class with at least this share of the largest one's ranks is dominant too."""


@dataclass(frozen=True)
class OddRanks:
    """Ranks outside the dominant classes, and what they share.

    Attributes:
        group: The smallest parallel group that holds them all; None where none does.
        nodes: Nodes to exclude: the group's, or the odd ranks' own where these are on one node.
    """

    ranks: tuple[int, ...]
    group: ParallelGroup | None
    nodes: tuple[str, ...]


def odd_ranks(capture: Capture, groups: Groups) -> OddRanks | None:
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
        return OddRanks(odd, groups.shared(odd), tuple(own))
    group = groups.shared(odd)
    if group is None:
        return OddRanks(odd, None, ())
    nodes = {node_of[rank] for rank in group.ranks if rank in node_of}
    return OddRanks(odd, group, tuple(sorted(nodes)))
