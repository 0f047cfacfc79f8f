"""A backup stands where the failure that took the first copy does not reach."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.saving.backup.placement import Placement, PlacementGrid, lost, place

POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def layouts(draw: st.DrawFn) -> PlacementGrid:
    """Of up to 64 ranks, with whole nodes."""
    sizes = {"tp": draw(POWERS), "pp": draw(st.integers(1, 8)), "dp": draw(st.integers(1, 8))}
    while sizes["tp"] * sizes["pp"] * sizes["dp"] > 64:
        largest = max(sizes, key=lambda name: sizes[name])
        sizes[largest] = max(1, sizes[largest] // 2)
    order = draw(st.permutations(sorted(sizes)))
    layout = PlacementGrid({name: sizes[name] for name in order}, 1)
    whole = [n for n in (1, 2, 4, 8) if layout.world_size % n == 0]
    return PlacementGrid({name: sizes[name] for name in order}, draw(st.sampled_from(whole)))


def group_nodes(layout: PlacementGrid) -> list[set[int]]:
    """For each parallel group the nodes that are evicted with it."""
    found: dict[object, set[int]] = {}
    for rank in range(layout.world_size):
        for group in layout.groups(rank):
            found.setdefault(group, set()).add(layout.node(rank))
    return list(found.values())


def test_byterobusts_example() -> None:
    """TP 2, PP 4, DP 2 on nodes of two: 8 and 9 lie with ranks that share no group with them, in pairs."""
    layout = PlacementGrid({"tp": 2, "dp": 2, "pp": 4}, 2)
    found = place(layout)
    assert found is not None
    assert found.shared == 0
    assert {*found.backups[8], *found.backups[9]} == {2, 3}
    assert {*found.backups[2], *found.backups[3]} == {8, 9}
    assert [others[:1] for others in place(layout, 2).backups] == list(found.backups)  # type: ignore[union-attr]


@given(layouts())
def test_any_one_node_may_be_lost(layout: PlacementGrid) -> None:
    """Each rank keeps exactly one other's; nothing is lost with one node."""
    found = place(layout)
    assert (found is None) == (layout.nodes == 1)
    if found is None:
        return
    assert sorted(found.backups) == [(rank,) for rank in range(layout.world_size)]
    for node in range(layout.nodes):
        assert lost(layout, found.backups, {node}) == []


@given(layouts())
def test_any_whole_group_may_be_lost_where_nodes_without_a_common_group_are_found(layout: PlacementGrid) -> None:
    """And with two axes of two nodes or more, tensor groups within nodes, they always are."""
    found = place(layout)
    if found is None:
        return
    if found.shared == 0:
        for nodes in group_nodes(layout):
            assert lost(layout, found.backups, nodes) == []


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(("pp", "dp"), [(2, 2), (4, 2), (2, 4), (2, 3), (3, 2), (4, 4), (8, 2), (2, 8), (5, 3), (8, 8)])
@pytest.mark.parametrize("order", list(itertools.permutations(("pp", "dp"))))
def test_tensor_groups_of_a_node_with_pipelines_and_replicas(tp: int, pp: int, dp: int, order: tuple[str, ...]) -> None:
    """The usual layout: whole groups of every axis may be lost, in either order of pipelines and replicas."""
    sizes = {"pp": pp, "dp": dp}
    layout = PlacementGrid({"tp": tp, **{name: sizes[name] for name in order}}, tp)
    found = place(layout)
    assert found is not None
    assert found.shared == 0
    for nodes in group_nodes(layout):
        assert lost(layout, found.backups, nodes) == []


@given(layouts())
def test_of_two_nodes_only_a_pair_that_holds_both_copies_is_fatal(layout: PlacementGrid) -> None:
    """One backup cannot survive all pairs: those of a node and its backup lose, and they are one a node at most."""
    found = place(layout)
    if found is None:
        return
    pairs = itertools.combinations(range(layout.nodes), 2)
    fatal = {pair for pair in pairs if lost(layout, found.backups, set(pair))}
    kept = {tuple(sorted((layout.node(r), layout.node(b)))) for r, (b,) in enumerate(found.backups)}
    assert fatal == kept
    aligned = all(len({layout.node(found.backups[r][0]) for r in range(layout.world_size) if layout.node(r) == n}) == 1
                  for n in range(layout.nodes))  # fmt: skip
    if aligned:
        assert len(fatal) <= layout.nodes


def test_pairs_that_back_each_other_up_halve_the_fatal_ones() -> None:
    """Even sizes: eight nodes, four fatal pairs of 28."""
    layout = PlacementGrid({"tp": 2, "pp": 4, "dp": 2}, 2)
    found = place(layout)
    assert found is not None
    fatal = [p for p in itertools.combinations(range(layout.nodes), 2) if lost(layout, found.backups, set(p))]
    assert len(fatal) == 4


def test_with_no_such_node_the_farthest_is_taken() -> None:
    """All nodes are in one data-parallel group: half around the ring, and it says that a group is shared."""
    layout = PlacementGrid({"tp": 2, "dp": 8}, 2)
    found = place(layout)
    assert found is not None
    assert found.shared > 0
    assert found.backups[0] == (8,)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_ranks_may_lie_anywhere(nodes: list[int]) -> None:
    """Uneven nodes, ranks in any order: still no backup on its rank's own node."""
    numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    layout = PlacementGrid({"dp": len(nodes)}, node_of=[numbers[node] for node in nodes])
    found = place(layout)
    assert (found is None) == (layout.nodes == 1)
    for node in range(layout.nodes if found else 0):
        assert found is not None
        assert lost(layout, found.backups, {node}) == []


def factors(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """Sizes of at most so many axes whose product it is, in any order, none of them 1."""
    yield (number,)
    for first in range(2, number // 2 + 1) if most > 1 else ():
        if number % first == 0:
            yield from ((first, *rest) for rest in factors(number // first, most - 1))


def every_layout() -> Iterator[PlacementGrid]:
    """Up to 64 ranks, up to four axes in any order (tp, pp, dp, cp or ep), 1 to 8 ranks a node; three nodes or more."""
    for ranks in range(3, 65):
        for sizes in factors(ranks, 4):
            for ranks_per_node in (1, 2, 4, 8):
                if ranks > 2 * ranks_per_node:
                    yield PlacementGrid({f"axis{number}": size for number, size in enumerate(sizes)}, ranks_per_node)


def cuts(layout: PlacementGrid) -> bool:
    """Whether nodes hold neither whole blocks of ranks nor lie within them, along each axis."""
    a_node, block, found = sum(layout.node(rank) == 0 for rank in range(layout.world_size)), 1, False
    for size in layout.sizes:
        block *= size
        found |= bool(block % a_node and a_node % block)
    return found


def partial_groups(layout: PlacementGrid) -> set[int]:
    """The nodes of each group that is not on all of them, as bits."""
    found: Counter[object] = Counter()
    for node, groups in enumerate(layout.groups_by_node()):
        found.update(dict.fromkeys(groups, 1 << node))
    return set(found.values()) - {(1 << layout.nodes) - 1}


def holders(layout: PlacementGrid, found: Placement) -> list[tuple[int, ...]]:
    """For each rank the nodes that have its checkpoint."""
    return [tuple(layout.node(one) for one in (rank, *others)) for rank, others in enumerate(found.backups)]


def fatal(groups: set[int], nodes: tuple[int, ...]) -> bool:
    """Whether all of these nodes go with one group."""
    bits = sum(1 << node for node in nodes)
    return any(bits & group == bits for group in groups)


def test_with_two_backups_any_two_nodes_and_any_group_may_be_lost() -> None:
    """In every layout up to 64 ranks: three nodes each, not all of one group, and each node keeps as many.

    Three nodes of which two may go: that is every pair. A group that is on all nodes is no loss that anything outlives.
    The few whose nodes cut through groups so that each choice of three nodes is in one group are counted.
    """
    hopeless: set[PlacementGrid] = set()
    for layout in every_layout():
        found = place(layout, 2)
        assert found is not None
        groups, kept = partial_groups(layout), holders(layout, found)
        assert all(len(set(nodes)) == 3 for nodes in kept)
        for own in {nodes[0] for nodes in kept if fatal(groups, nodes)}:
            others = [node for node in range(layout.nodes) if node != own]
            assert all(fatal(groups, (own, *two)) for two in itertools.combinations(others, 2)), layout.sizes
            hopeless.add(layout)
        each = Counter(node for _, *others in kept for node in others)
        if layout.world_size % layout.nodes == 0 and len(set(Counter(nodes[0] for nodes in kept).values())) == 1:
            assert len({each[node] for node in range(layout.nodes)}) == 1, layout.sizes
    assert len(hopeless) == 29
    assert all(cuts(layout) for layout in hopeless)


@pytest.mark.parametrize("axes", [{"tp": 8, "pp": 4, "dp": 2}, {"tp": 4, "pp": 2, "dp": 8}, {"tp": 8, "dp": 6}])
def test_nothing_is_lost_with_any_pair_or_any_group(axes: dict[str, int]) -> None:
    """The same, loss by loss, as a job would see it."""
    layout = PlacementGrid(axes, 4)
    found = place(layout, 2)
    assert found is not None
    for pair in itertools.combinations(range(layout.nodes), 2):
        assert lost(layout, found.backups, set(pair)) == []
    for nodes in group_nodes(layout):
        assert len(nodes) == layout.nodes or lost(layout, found.backups, nodes) == []


def test_where_no_three_nodes_outlive_a_group() -> None:
    """Tensor groups of five, four ranks a node: rank 0's node shares a group with any two others. Pairs may be lost."""
    layout = PlacementGrid({"tp": 5, "dp": 3}, 4)
    found = place(layout, 2)
    assert found is not None
    assert any(lost(layout, found.backups, nodes) for nodes in group_nodes(layout) if len(nodes) < layout.nodes)
    for pair in itertools.combinations(range(layout.nodes), 2):
        assert lost(layout, found.backups, set(pair)) == []


def test_two_nodes_have_room_for_one_backup() -> None:
    """A second one would lie where a copy is."""
    layout = PlacementGrid({"dp": 8}, 4)
    assert place(layout, 2) == place(layout, 1)
    assert place(PlacementGrid({"dp": 4}, 4), 2) is None


@given(st.lists(st.integers(0, 5), min_size=3, max_size=40), st.sampled_from([1, 2]))
def test_ranks_may_lie_anywhere_with_two_backups(nodes: list[int], tp: int) -> None:
    """Uneven nodes: three different ones for each rank, and not of one group where there is a choice."""
    nodes = nodes[: len(nodes) // tp * tp]
    numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    layout = PlacementGrid({"tp": tp, "dp": len(nodes) // tp}, node_of=[numbers[node] for node in nodes])
    found = place(layout, 2)
    if layout.nodes < 3:
        assert found == place(layout)
        return
    assert found is not None
    groups = partial_groups(layout)
    for own, *others in holders(layout, found):
        assert len({own, *others}) == 3
        if fatal(groups, (own, *others)):
            rest = [node for node in range(layout.nodes) if node != own]
            assert all(fatal(groups, (own, *two)) for two in itertools.combinations(rest, 2))


def test_thousands_of_ranks_are_placed_in_a_moment() -> None:
    """Every rank does it at the start; each node keeps 16."""
    layout = PlacementGrid({"tp": 8, "pp": 8, "dp": 64}, 8)
    found = place(layout, 2)
    assert found is not None
    each = Counter(node for _, *others in holders(layout, found) for node in others)
    assert set(each.values()) == {16}


def test_what_is_no_layout_is_refused() -> None:
    """Sizes below one."""
    with pytest.raises(ValueError, match="no layout"):
        PlacementGrid({"tp": 0}, 1)
    with pytest.raises(ValueError, match="no layout"):
        PlacementGrid({"tp": 1}, 0)
    with pytest.raises(ValueError, match="are 4 ranks, and there are 3"):
        PlacementGrid({"tp": 2, "dp": 2}, node_of=(0, 0, 1))
