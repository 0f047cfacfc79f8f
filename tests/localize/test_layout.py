"""Parallel groups from sizes: Megatron's order, other orders, and what is wrong with a layout, in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.localize.layout import DENSE, LayoutError, ParallelGroup, ParallelLayout, fit, groups_of, parse


def layout(text: str, world_size: int = 0) -> ParallelLayout:
    """A layout from its text."""
    return fit(*parse(text), world_size)


def members(found: ParallelLayout, *kinds: str) -> list[tuple[int, ...]]:
    """Ranks of all groups of these kinds."""
    return [group.ranks for group in found.groups(*kinds)]


def test_megatrons_order() -> None:
    """Tensor changes fastest, pipeline slowest: the groups that a real job of 16 ranks has in its dumps."""
    found = layout("tp=2,pp=4,dp=2,ep=4,etp=1")
    assert members(found, "tp")[0] == (0, 1)
    assert members(found, "dp")[0] == (0, 2)
    assert members(found, "pp")[0] == (0, 4, 8, 12)
    assert members(found, "ep")[0] == (0, 1, 2, 3)
    assert members(found, "tp", "pp")[0] == (0, 1, 4, 5, 8, 9, 12, 13)
    assert members(found, "tp", "dp")[0] == (0, 1, 2, 3)


def test_another_order() -> None:
    """Pipelines next to each other: the last replica of 32 ranks is 24-31."""
    found = layout("tp=2,pp=4,dp=4,order=tp-pp-dp")
    assert members(found, "pp")[0] == (0, 2, 4, 6)
    assert members(found, "tp", "pp")[-1] == tuple(range(24, 32))


def test_experts_lie_over_the_same_ranks() -> None:
    """Experts take tensor's size unless they have their own, and do not multiply the world."""
    found = layout("tp=2,pp=2,dp=4,ep=2")
    assert found.world_size == 16
    assert members(found, "ep")[:2] == [(0, 2), (1, 3)]


def test_what_is_left_is_data_parallelism() -> None:
    """`dp` follows from the number of ranks."""
    assert layout("tp=2,pp=4", 64).sizes["dp"] == 8


@given(
    st.permutations(DENSE),
    st.tuples(*[st.integers(1, 4)] * 4),
    st.sets(st.sampled_from(DENSE), min_size=1),
)
def test_groups_of_a_kind_share_out_all_ranks(order: list[str], sizes: tuple[int, ...], kinds: set[str]) -> None:
    """Whatever the order, every rank is in exactly one group of a kind, and all have the same size."""
    found = fit(dict(zip(DENSE, sizes, strict=True)), "-".join(order), 0)
    groups = members(found, *kinds)
    assert sorted(rank for group in groups for rank in group) == list(range(found.world_size))
    assert len({len(group) for group in groups}) == 1


@pytest.mark.parametrize(
    ("text", "world_size", "words"),
    [
        ("tp=2,pp=x", 0, "not understood: 'pp=x'"),
        ("tp=2,tp=2", 0, "not understood: 'tp=2'"),
        ("tp=0", 0, "not understood: 'tp=0'"),
        ("order=tp-pp", 0, "no sizes"),
        ("tp=3", 16, "does not divide 16 ranks"),
        ("tp=2,pp=2,dp=2", 10, "makes 8 ranks; beyond it: ranks 8-9"),
        ("tp=2,pp=4,dp=4", 16, "makes 32 ranks, but there are 16"),
        ("tp=2,dp=2,ep=3", 0, "does not divide the 4 ranks of a pipeline stage"),
        ("tp=2,pp=2,dp=2,order=tp-dp", 0, "the order tp-dp lacks pp"),
        ("tp=2,order=tp-tp", 0, "names a kind twice"),
        ("tp=999999,pp=999999,dp=1", 0, "at most"),
    ],
)
def test_what_is_wrong_with_it(text: str, world_size: int, words: str) -> None:
    """Each wrong layout is a sentence that says which part and why."""
    with pytest.raises(LayoutError, match="layout: ") as caught:
        layout(text, world_size)
    assert words in str(caught.value)


def test_the_smallest_group_that_holds_them() -> None:
    """A pair within a machine, a pipeline, a replica; nothing smaller than the world holds ranks of two corners."""
    groups = groups_of(layout("tp=2,pp=2,dp=2"))
    assert groups.shared([0, 1]) == ParallelGroup("tp", (0, 1))
    assert groups.shared([0, 4]) == ParallelGroup("pp", (0, 4))
    assert groups.shared([0, 5]) == ParallelGroup("tp-pp", (0, 1, 4, 5))
    assert groups.shared([0, 7]) is None
    assert groups.shared([]) is None
    assert groups_of(layout("tp=2,pp=2,dp=2")).of("pp", 7) == ParallelGroup("pp", (3, 7))
