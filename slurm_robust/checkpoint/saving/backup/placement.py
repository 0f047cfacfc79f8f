"""Chooses the nodes for each rank's backups, so that one failure does not destroy all copies.

A failure affects a node or two, or the nodes of a whole parallel group, since such a group is evicted together. So a
backup is kept on a node that has no tensor, pipeline, data or other group in common with the rank's own; a second
backup is kept where it is not lost together with both other copies. Pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_robust.checkpoint.saving.backup.second_copies import spread

_Group = tuple[str, tuple[int, ...]]


class Placement(NamedTuple):
    """The choice of nodes for all backups.

    Attributes:
        backups: Rank → the ranks on whose nodes its checkpoint is kept, too, one or two, on different nodes. Each node
            keeps the same number if all have the same number of ranks.
        shared: The most groups that a node has in common with the node of its ranks' first backups; 0 is wanted.
    """

    backups: tuple[tuple[int, ...], ...]
    shared: int


class PlacementGrid:
    """A regular layout of ranks.

    Args:
        axes: Name → size, the fastest first: `{"tp": 2, "pp": 4, "dp": 2}` if ranks 0 and 1 are a tensor group.
        ranks_per_node: Consecutive ranks that share a node.
        node_of: The number of each rank's node, from 0 on, if ranks are not distributed regularly.

    Raises:
        ValueError: a size is below 1, a node has no rank, or the nodes have another number of ranks.
    """

    def __init__(self, axes: Mapping[str, int], ranks_per_node: int = 1, node_of: Sequence[int] = ()) -> None:
        if ranks_per_node < 1 or any(size < 1 for size in axes.values()):
            raise ValueError(f"no layout: {dict(axes)} with {ranks_per_node} ranks a node")
        if node_of and math.prod(axes.values()) != len(node_of):
            raise ValueError(
                f"no layout: {dict(axes)} are {math.prod(axes.values())} ranks, and there are {len(node_of)}"
            )
        self.names = tuple(axes)
        self.sizes = tuple(axes.values())
        self.world_size = math.prod(self.sizes)
        self._node_of = tuple(node_of) or tuple(rank // ranks_per_node for rank in range(self.world_size))
        self.nodes = max(self._node_of) + 1
        self._ranks_on: list[list[int]] = [[] for _ in range(self.nodes)]
        for rank, node in enumerate(self._node_of):
            self._ranks_on[node].append(rank)

    def node(self, rank: int) -> int:
        """Return the number of the rank's node."""
        return self._node_of[rank]

    def half_around(self, rank: int) -> int:
        """Return the rank at the same position on the node half around the ring."""
        return self.facing(rank, (self._node_of[rank] + self.nodes // 2) % self.nodes)

    def facing(self, rank: int, node: int) -> int:
        """Return the rank at the same position on another node."""
        there = self._ranks_on[node]
        return there[self._ranks_on[self._node_of[rank]].index(rank) % len(there)]

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the rank's position on each axis."""
        found = []
        for size in self.sizes:
            rank, place = divmod(rank, size)
            found.append(place)
        return tuple(found)

    def rank(self, coordinates: Sequence[int]) -> int:
        """Return the rank at these positions."""
        found = 0
        for size, place in zip(reversed(self.sizes), reversed(coordinates), strict=True):
            found = found * size + place
        return found

    def groups(self, rank: int) -> list[_Group]:
        """Return the rank's groups of more than one rank: along each axis, the ranks that differ on that axis only."""
        own = self.coordinates(rank)
        return [
            (name, own[:axis] + own[axis + 1 :])
            for axis, (name, size) in enumerate(zip(self.names, self.sizes, strict=True))
            if size > 1
        ]

    def groups_by_node(self) -> list[set[_Group]]:
        """Return the groups that each node takes part in."""
        found: list[set[_Group]] = [set() for _ in range(self.nodes)]
        for rank in range(self.world_size):
            found[self.node(rank)].update(self.groups(rank))
        return found


def place(layout: PlacementGrid, copies: int = 1) -> Placement | None:
    """Choose backups, 1 or 2 `copies`; None if there is only one node, and one backup for each rank if there are two.

    With two copies, any two nodes may be lost, or any whole group that is not on all nodes, without the loss of all
    copies of a rank. The only exception: if all three nodes of a rank must be in one of its groups (tensor groups of
    five, four ranks a node), the second backup lies where the fewest groups are.
    """
    first = _first(layout)
    if first is None or copies < 2 or layout.nodes <= 2:
        return first
    spread_out = spread(layout, [layout.node(other) for (other,) in first.backups])
    backups = []
    for rank, (other,) in enumerate(first.backups):
        near, far = spread_out.first[rank], spread_out.second[rank]
        backups.append((other if layout.node(other) == near else layout.facing(rank, near), layout.facing(rank, far)))
    return Placement(tuple(backups), first.shared)


def _first(layout: PlacementGrid) -> Placement | None:
    """Choose one backup for each rank.

    All ranks' backups lie in the same direction along each axis: half around it, or not moved. The chosen direction has
    no two copies on one node; then the fewest groups in common; then it pairs nodes (so that the fewest pairs of nodes
    hold both copies of a rank); then it is the farthest, by the nodes' numbers around a ring.
    """
    if layout.nodes < 2:
        return None
    by_node = layout.groups_by_node()
    best: tuple[tuple[float, ...], tuple[int, ...], int] | None = None
    for shift in itertools.product(*({0, size // 2} for size in layout.sizes)):
        backup = tuple(_shifted(layout, rank, shift) for rank in range(layout.world_size))
        pairs = {(layout.node(rank), layout.node(other)) for rank, other in enumerate(backup)}
        if any(here == there for here, there in pairs):
            # Within a node nothing is gained; whole nodes further along is what is left then.
            continue
        found = _judged(layout, backup, pairs, by_node)
        best = found if best is None or found[0] < best[0] else best
    if best is None:
        backup = tuple(layout.half_around(rank) for rank in range(layout.world_size))
        best = _judged(layout, backup, {(layout.node(r), layout.node(b)) for r, b in enumerate(backup)}, by_node)
    return Placement(tuple((other,) for other in best[1]), best[2])


def _shifted(layout: PlacementGrid, rank: int, shift: Sequence[int]) -> int:
    own = layout.coordinates(rank)
    return layout.rank([(place + by) % size for place, by, size in zip(own, shift, layout.sizes, strict=True)])


def _judged(
    layout: PlacementGrid, backup: tuple[int, ...], pairs: set[tuple[int, int]], by_node: list[set[_Group]]
) -> tuple[tuple[float, ...], tuple[int, ...], int]:
    shared = [len(by_node[here] & by_node[there]) for here, there in pairs]
    distance = min(min((here - there) % layout.nodes, (there - here) % layout.nodes) for here, there in pairs)
    fatal = len({frozenset(pair) for pair in pairs})
    return (max(shared), sum(shared) / len(shared), fatal, -distance), backup, max(shared)


def lost(layout: PlacementGrid, backups: Sequence[Sequence[int]], nodes: set[int]) -> list[int]:
    """Ranks that lose all copies if these nodes are lost."""
    return [
        rank for rank, others in enumerate(backups) if all(layout.node(holder) in nodes for holder in (rank, *others))
    ]
