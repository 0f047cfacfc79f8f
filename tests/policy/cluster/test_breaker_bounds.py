"""The breaker's arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.site import BreakerConfig
from slurm_robust.policy.cluster.breaker import Drain, headroom, over_limit

HUNDRED = {"main": frozenset(f"n{i}" for i in range(100))}


def test_count_in_the_window() -> None:
    """The ninth drain within the window is too much; drains that are older do not count."""
    config = BreakerConfig()
    eight = [Drain(f"n{i}", 1000.0) for i in range(8)]
    assert over_limit(eight, HUNDRED, config, now_s=1100) == ""
    assert "max_drains" in over_limit(eight, HUNDRED, config, now_s=1100, more=frozenset(("n50",)))
    assert over_limit(eight, HUNDRED, config, now_s=1100, more=frozenset(("n3",))) == ""
    assert over_limit(eight, HUNDRED, config, now_s=1100 + 3600, more=frozenset(("n50",))) == ""


def test_share_of_a_partition() -> None:
    """More than the share of one partition is too much, also when it went slowly; ended drains do not count."""
    config = BreakerConfig(max_drains=100)
    rack = {"rack": frozenset(f"r{i}" for i in range(10)), **HUNDRED}
    two = [Drain("r0", 10.0), Drain("r1", 20.0)]
    more = frozenset(("r2",))
    assert "partition rack" in over_limit(two, rack, config, now_s=1e6, more=more)
    assert over_limit([two[0], Drain("r1", 20.0, out=False)], rack, config, now_s=1e6, more=more) == ""


def test_what_is_out_already_is_not_said_to_come() -> None:
    """Prologs drain nodes themselves: the breaker opens by what has happened, or by what it does not allow."""
    config, rack = BreakerConfig(max_drains=2, max_partition_share=0.2), {"rack": frozenset("abcdefghij")}
    three = [Drain(name, 10.0) for name in "abc"]
    assert over_limit(three, rack, config, now_s=20) == "3 nodes went out within 3600 s, and breaker.max_drains is 2"
    assert "3 of 10 nodes of partition rack are out, and" in over_limit(three, rack, config, now_s=9999)
    two, more = three[:2], frozenset("c")
    assert "3 nodes would be out" in over_limit(two, rack, config, now_s=20, more=more)
    assert "3 of 10 nodes of partition rack would be out" in over_limit(two, rack, config, now_s=9999, more=more)


def test_small_partition_may_lose_two() -> None:
    """A fifth of four nodes is none, a fifth of nine is one: two may go nevertheless, and not a third; with 0, none."""
    for nodes in ("abcd", "abcdefghi"):
        small = {"small": frozenset(nodes)}
        one, two = [Drain("a", 5.0)], [Drain("a", 5.0), Drain("b", 6.0)]
        assert over_limit(one, small, BreakerConfig(), now_s=10, more=frozenset("b")) == ""
        assert over_limit(two, small, BreakerConfig(), now_s=10, more=frozenset("c"))
        never = BreakerConfig(max_partition_share=0.0)
        assert over_limit([], small, never, now_s=10, more=frozenset("a"))


@given(st.lists(st.tuples(st.integers(0, 99), st.floats(0, 5000)), max_size=40), st.floats(5000, 6000))
def test_a_reset_accepts_what_was_before(events: list[tuple[int, float]], reset_at_s: float) -> None:
    """Whatever was drained before the reset, the next node may go."""
    drains = [Drain(f"n{i}", at_s) for i, at_s in events]
    why = over_limit(drains, HUNDRED, BreakerConfig(), now_s=6001, reset_at_s=reset_at_s, more=frozenset(("n7",)))
    assert why == ""


@given(
    st.lists(st.tuples(st.integers(0, 19), st.floats(0, 8000), st.booleans()), max_size=12),
    st.integers(0, 12),
    st.floats(0, 1),
)
def test_headroom_is_what_over_limit_allows(drains: list[tuple[int, float, bool]], most: int, share: float) -> None:
    """So many nodes that are not out yet may go at once, and not one more, in the partition that allows least."""
    config = BreakerConfig(max_drains=most, max_partition_share=share)
    rack = {"rack": frozenset(f"n{i}" for i in range(20))}
    known = [Drain(f"n{i}", at_s, out) for i, at_s, out in drains]
    left = headroom(known, rack, config, now_s=8000)["n0"]
    untouched = sorted(rack["rack"] - {d.node for d in known})
    if 0 < left <= len(untouched):
        assert over_limit(known, rack, config, now_s=8000, more=frozenset(untouched[:left])) == ""
    if left + 1 <= len(untouched):
        assert over_limit(known, rack, config, now_s=8000, more=frozenset(untouched[: left + 1]))


def test_headroom_of_a_node_in_two_partitions_is_the_smaller() -> None:
    """Bounds hold for each partition."""
    both = {"all": frozenset(f"n{i}" for i in range(100)), "few": frozenset(("n0", "n1", "n2"))}
    left = headroom([], both, BreakerConfig(), now_s=10)
    assert (left["n0"], left["n50"]) == (2, 8)
