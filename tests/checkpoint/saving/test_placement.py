"""A backup stands where the failure that took the first copy does not reach."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.saving.placement import Layout, lost, place

POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Of up to 64 ranks, with whole nodes."""
    sizes = {"tp": draw(POWERS), "pp": draw(st.integers(1, 8)), "dp": draw(st.integers(1, 8))}
    while sizes["tp"] * sizes["pp"] * sizes["dp"] > 64:
        largest = max(sizes, key=lambda name: sizes[name])
        sizes[largest] = max(1, sizes[largest] // 2)
    order = draw(st.permutations(sorted(sizes)))
    layout = Layout({name: sizes[name] for name in order}, 1)
    whole = [n for n in (1, 2, 4, 8) if layout.world_size % n == 0]
    return Layout({name: sizes[name] for name in order}, draw(st.sampled_from(whole)))


def group_nodes(layout: Layout) -> list[set[int]]:
    """For each parallel group the nodes that are evicted with it."""
    found: dict[object, set[int]] = {}
    for rank in range(layout.world_size):
        for group in layout.groups(rank):
            found.setdefault(group, set()).add(layout.node(rank))
    return list(found.values())


def test_byterobusts_example() -> None:
    """TP 2, PP 4, DP 2 on nodes of two: 8 and 9 lie with ranks that share no group with them, in pairs."""
    layout = Layout({"tp": 2, "dp": 2, "pp": 4}, 2)
    found = place(layout)
    assert found is not None
    assert found.shared == 0
    assert {found.backup[8], found.backup[9]} == {2, 3}
    assert {found.backup[2], found.backup[3]} == {8, 9}


@given(layouts())
def test_any_one_node_may_be_lost(layout: Layout) -> None:
    """Each rank keeps exactly one other's; nothing is lost with one node."""
    found = place(layout)
    assert (found is None) == (layout.nodes == 1)
    if found is None:
        return
    assert sorted(found.backup) == list(range(layout.world_size))
    for node in range(layout.nodes):
        assert lost(layout, found.backup, {node}) == []


@given(layouts())
def test_any_whole_group_may_be_lost_where_nodes_without_a_common_group_are_found(layout: Layout) -> None:
    """And with two axes of two nodes or more, tensor groups within nodes, they always are."""
    found = place(layout)
    if found is None:
        return
    if found.shared == 0:
        for nodes in group_nodes(layout):
            assert lost(layout, found.backup, nodes) == []


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(("pp", "dp"), [(2, 2), (4, 2), (2, 4), (2, 3), (3, 2), (4, 4), (8, 2), (2, 8), (5, 3), (8, 8)])
@pytest.mark.parametrize("order", list(itertools.permutations(("pp", "dp"))))
def test_tensor_groups_of_a_node_with_pipelines_and_replicas(tp: int, pp: int, dp: int, order: tuple[str, ...]) -> None:
    """The usual layout: whole groups of every axis may be lost, in either order of pipelines and replicas."""
    sizes = {"pp": pp, "dp": dp}
    layout = Layout({"tp": tp, **{name: sizes[name] for name in order}}, tp)
    found = place(layout)
    assert found is not None
    assert found.shared == 0
    for nodes in group_nodes(layout):
        assert lost(layout, found.backup, nodes) == []


@given(layouts())
def test_of_two_nodes_only_a_pair_that_holds_both_copies_is_fatal(layout: Layout) -> None:
    """One backup cannot survive all pairs: those of a node and its backup lose, and they are one a node at most."""
    found = place(layout)
    if found is None:
        return
    pairs = itertools.combinations(range(layout.nodes), 2)
    fatal = {pair for pair in pairs if lost(layout, found.backup, set(pair))}
    kept = {tuple(sorted((layout.node(r), layout.node(b)))) for r, b in enumerate(found.backup)}
    assert fatal == kept
    aligned = all(len({layout.node(found.backup[r]) for r in range(layout.world_size) if layout.node(r) == n}) == 1
                  for n in range(layout.nodes))  # fmt: skip
    if aligned:
        assert len(fatal) <= layout.nodes


def test_pairs_that_back_each_other_up_halve_the_fatal_ones() -> None:
    """Even sizes: eight nodes, four fatal pairs of 28."""
    layout = Layout({"tp": 2, "pp": 4, "dp": 2}, 2)
    found = place(layout)
    assert found is not None
    fatal = [p for p in itertools.combinations(range(layout.nodes), 2) if lost(layout, found.backup, set(p))]
    assert len(fatal) == 4


def test_with_no_such_node_the_farthest_is_taken() -> None:
    """All nodes are in one data-parallel group: half around the ring, and it says that a group is shared."""
    layout = Layout({"tp": 2, "dp": 8}, 2)
    found = place(layout)
    assert found is not None
    assert found.shared > 0
    assert found.backup[0] == 8


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_ranks_may_lie_anywhere(nodes: list[int]) -> None:
    """Uneven nodes, ranks in any order: still no backup on its rank's own node."""
    numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    layout = Layout({"dp": len(nodes)}, node_of=[numbers[node] for node in nodes])
    found = place(layout)
    assert (found is None) == (layout.nodes == 1)
    for node in range(layout.nodes if found else 0):
        assert found is not None
        assert lost(layout, found.backup, {node}) == []


def test_what_is_no_layout_is_refused() -> None:
    """Sizes below one."""
    with pytest.raises(ValueError, match="no layout"):
        Layout({"tp": 0}, 1)
    with pytest.raises(ValueError, match="no layout"):
        Layout({"tp": 1}, 0)
    with pytest.raises(ValueError, match="are 4 ranks, and there are 3"):
        Layout({"tp": 2, "dp": 2}, node_of=(0, 0, 1))
