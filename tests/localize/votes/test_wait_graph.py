"""The graph of who waits for whom, without stacks: its ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.localize.layout import Groups, ParallelGroup, fit, groups_of
from slurm_robust.localize.votes.group_scopes import Scope
from slurm_robust.localize.votes.wait_graph import WaitGraph, _strong_parts

GROUPS = groups_of(fit({"tp": 2, "pp": 2, "dp": 2}, "tp-pp-dp", 8))
DATA, TENSOR, TP, NEXT, PREV = Scope("dp"), Scope("tp"), Scope("tp"), Scope("pp", (1,)), Scope("pp", (-1,))


def ends(
    scopes: dict[int, Scope | None], others: tuple[int, ...] = (), groups: Groups = GROUPS
) -> list[tuple[int, ...]]:
    """Ranks of each end."""
    return [sink.ranks for sink in WaitGraph(scopes, others, groups).sinks()]


def test_one_outside_is_the_end() -> None:
    """7 computes; 3 waits for it in their data group, 5 for it in the pipeline, 1 for 5."""
    assert ends({3: DATA, 5: NEXT, 1: DATA}, others=(7, 0)) == [(7,)]


def test_nobody_waits_for_an_onlooker() -> None:
    """A rank outside that no one needs is no end."""
    assert ends({0: TENSOR}, others=(1, 6)) == [(1,)]


def test_a_whole_group_is_an_end() -> None:
    """6 and 7 are both in their tensor group; the others wait for them."""
    found = WaitGraph({6: TENSOR, 7: TENSOR, 2: DATA, 3: DATA, 4: NEXT, 5: NEXT, 0: NEXT, 1: NEXT}, (), GROUPS).sinks()
    assert [(s.ranks, s.group, s.waiters) for s in found] == [
        ((6, 7), ParallelGroup("tp", (6, 7)), frozenset(range(6)))
    ]


def test_a_circle_of_neighbours_is_an_end_without_a_group() -> None:
    """4 sends to 6, 6 receives from 4: a lost message; 0 waits for 4."""
    found = WaitGraph({4: NEXT, 6: PREV, 0: DATA}, (), GROUPS).sinks()
    assert [(s.ranks, s.waiters) for s in found] == [((4, 6), {0})]


def test_the_unknown_are_told() -> None:
    """A rank that waits in code without a scope, and one whose group is not known."""
    graph = WaitGraph({0: None, 1: Scope("ep"), 2: DATA}, (), GROUPS)
    assert graph.unknown == (0, 1)


@given(st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3), min_size=10, max_size=10))
def test_strong_parts_against_reachability(edges: dict[int, list[int]]) -> None:
    """Two members are in one part exactly where each reaches the other."""

    def reached(start: int) -> set[int]:
        seen, todo = {start}, [start]
        while todo:
            new = set(edges[todo.pop()]) - seen
            seen |= new
            todo.extend(new)
        return seen

    reach = {member: reached(member) for member in edges}
    part_of = {member: number for number, part in enumerate(_strong_parts(edges)) for member in part}
    assert sorted(part_of) == sorted(edges)
    for a in edges:
        for b in edges:
            assert (part_of[a] == part_of[b]) == (b in reach[a] and a in reach[b])
