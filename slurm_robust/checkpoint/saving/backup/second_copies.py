"""Chooses nodes for second backups: a third node each, so that the loss of two nodes, or of a group, leaves a copy.

Sets of nodes are bits of an integer here, so that thousands of nodes are fast.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class RankGrid(Protocol):
    """The part of `placement.PlacementGrid` that is needed here."""

    world_size: int
    nodes: int

    def node(self, rank: int) -> int:
        """Return the number of the rank's node."""

    def groups_by_node(self) -> Sequence[set[tuple[str, tuple[int, ...]]]]:
        """Return the groups that each node takes part in."""


class SecondCopies(NamedTuple):
    """Rank → the node of its first and of its second backup."""

    first: list[int]
    second: list[int]


class _Masks:
    """The nodes of each group, and derived sets."""

    def __init__(self, grid: RankGrid) -> None:
        self.all = (1 << grid.nodes) - 1
        by_group: Counter[object] = Counter()
        by_node = grid.groups_by_node()
        for node, groups in enumerate(by_node):
            by_group.update(dict.fromkeys(groups, 1 << node))
        self.groups = [{by_group[group] for group in groups} for groups in by_node]
        """For each node: its groups, as masks of the groups' nodes."""
        self.near = [functools.reduce(operator.or_, masks, 0) for masks in self.groups]
        """For each node: the nodes that have a group in common with it."""

    def allowed(self, own: int, first: int) -> int:
        """Nodes for a second backup: outside of every group that has the first two copies, unless that is all nodes."""
        pair = 1 << own | 1 << first
        taken = pair
        for mask in self.groups[own]:
            if mask & pair == pair and mask != self.all:
                taken |= mask
        return self.all & ~taken

    def least_bad(self, own: int, first: int) -> int:
        """Return the nodes in the fewest groups that would lose all copies, if no allowed node is left."""
        pair = 1 << own | 1 << first
        fatal: Counter[int] = Counter()
        for mask in self.groups[own]:
            if mask & pair == pair and mask != self.all:
                fatal.update(_bits(mask & ~pair))
        others = _bits(self.all & ~pair)
        least = min(fatal[node] for node in others)
        return sum(1 << node for node in others if fatal[node] == least)


def spread(grid: RankGrid, first: Sequence[int]) -> SecondCopies:
    """Choose a third node for each rank; `first` is the node of its first backup. There must be three nodes or more.

    The first backup stays where it is, unless it leaves no node for a second one while another node would. Second, each
    node keeps about the same number of backups. Third, the second backup lies on a node without a common group with the
    other two nodes, or at least with the rank's own node. Fourth, it lies between them, by the nodes' numbers around a
    ring.
    """
    masks, nodes = _Masks(grid), grid.nodes
    classes: dict[tuple[int, int], list[int]] = {}
    for rank in range(grid.world_size):
        classes.setdefault((grid.node(rank), first[rank]), []).append(rank)
    found = SecondCopies(list(first), [-1] * grid.world_size)
    open_to: list[int] = [0] * grid.world_size
    loads = Counter(first)
    apart: list[tuple[tuple[int, int], list[int]]] = []
    for (own, there), ranks in classes.items():
        here, allowed = there, masks.allowed(own, there)
        if not allowed:
            here, allowed = _elsewhere(masks, own, there, loads)
            loads[there] -= len(ranks)
            loads[here] += len(ranks)
        for rank in ranks:
            found.first[rank], open_to[rank] = here, allowed
        apart.append(((own, here), ranks))
    most = -(-2 * grid.world_size // nodes)
    room = sum(1 << node for node in range(nodes) if loads[node] < most)
    for (own, there), ranks in apart:
        far = open_to[ranks[0]] & ~masks.near[own]
        wishes = (far & ~masks.near[there], far, open_to[ranks[0]])
        for rank in ranks:
            among = next((few for wish in wishes if (few := wish & room)), 0)
            node = _between(among, own, there, nodes) if among else min(_bits(wishes[2]), key=lambda one: loads[one])
            found.second[rank] = node
            loads[node] += 1
            if loads[node] >= most:
                room &= ~(1 << node)
    _even_out(found.second, open_to, loads, nodes)
    return found


def _elsewhere(masks: _Masks, own: int, first: int, loads: Counter[int]) -> tuple[int, int]:
    """Return another node for a first backup, and the nodes it allows for a second one; else the least bad nodes."""
    others = masks.all & ~(1 << own)
    for wish in (others & ~masks.near[own], others & masks.near[own]):
        for node in sorted(_bits(wish), key=lambda one: loads[one]):
            if allowed := masks.allowed(own, node):
                return node, allowed
    return first, masks.least_bad(own, first)


def _between(among: int, own: int, first: int, nodes: int) -> int:
    """Return the first of these nodes after the middle of the longer way between two nodes, around a ring."""
    way = (first - own) % nodes
    middle = (own + way // 2 if 2 * way >= nodes else first + (nodes - way) // 2) % nodes
    later = among >> middle << middle
    return _lowest(later or among)


def _even_out(second: list[int], open_to: Sequence[int], loads: Counter[int], nodes: int) -> None:
    """Move second backups, one along each of a chain of nodes, until no chain makes the fullest less full."""
    kept_by: list[set[int]] = [set() for _ in range(nodes)]
    for rank, node in enumerate(second):
        kept_by[node].add(rank)
    settled: set[int] = set()
    while full := [node for node in range(nodes) if node not in settled]:
        fullest = max(full, key=lambda node: loads[node])
        if loads[fullest] - min(loads[node] for node in range(nodes)) < 2:
            return
        chain = _chain(fullest, kept_by, open_to, loads)
        if not chain:
            settled.add(fullest)
            continue
        for rank, to in chain:
            kept_by[second[rank]].remove(rank)
            kept_by[to].add(rank)
            second[rank] = to
        loads[fullest] -= 1
        loads[chain[-1][1]] += 1


def _chain(
    fullest: int, kept_by: Sequence[set[int]], open_to: Sequence[int], loads: Counter[int]
) -> list[tuple[int, int]]:
    """Moves (rank, to which node) that take one from the fullest node to one that has at least two fewer."""
    wanted = sum(1 << node for node in range(len(kept_by)) if loads[node] <= loads[fullest] - 2)
    if not wanted:
        return []
    came: dict[int, tuple[int, int]] = {}
    """Node → the rank that would come to it, and from where."""
    seen, waiting = 1 << fullest, [fullest]
    for node in waiting:
        for rank in sorted(kept_by[node]):
            if new := open_to[rank] & ~seen:
                seen |= new
                for to in _bits(new):
                    came[to] = rank, node
                    waiting.append(to)
                if new & wanted:
                    return _back(_lowest(new & wanted), fullest, came)
    return []


def _back(to: int, fullest: int, came: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    moves: list[tuple[int, int]] = []
    while to != fullest:
        rank, origin = came[to]
        moves.append((rank, to))
        to = origin
    return moves[::-1]


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _bits(mask: int) -> list[int]:
    """Return the nodes in the mask, in order."""
    found = []
    while mask:
        found.append(_lowest(mask))
        mask &= mask - 1
    return found
