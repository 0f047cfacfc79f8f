"""The size of a standby pool by its class's own past: what counts, and how fast a pool follows."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.cluster.standby_history import (
    AutoLimits,
    AutoSize,
    independent_failures,
    next_size,
    past_by_class,
    suggested,
)

DAY_S = 86400.0
LIMITS = AutoLimits(start=2, most=5, min_node_days=1000.0)
PLENTY = suggested(1000, 300, 30_000.0)


def test_what_counts_as_one_failure() -> None:
    """A node twice within the hour; a switch that takes three nodes. Two nodes by chance are two."""
    assert independent_failures([]) == 0
    assert independent_failures([("a", 0.0), ("a", 3000.0), ("a", 6000.0), ("a", 20_000.0)]) == 2
    assert independent_failures([("a", 0.0), ("b", 30.0)]) == 2
    assert independent_failures([("a", 0.0), ("b", 50.0), ("c", 100.0), ("d", 150.0), ("e", 500.0)]) == 2


def test_a_suggestion_has_its_interval() -> None:
    """ByteRobust's figures: about 0.0012 a machine-day gives 4 standbys for 1,024 machines."""
    past = suggested(1024, 37, 30_720.0)
    assert (past.low, past.size, past.high) == (4, 4, 5)
    assert past.sentence.startswith("37 failures in 30720 node-days (0.0012 a node-day")
    assert "at most 4 of 1024 nodes fail (95 %: 4 to 5)" in past.sentence


def test_nothing_seen_suggests_nothing() -> None:
    """No node-day: None. Many days without failure: 0, and what the interval still allows."""
    nothing = suggested(100, 0, 0.0)
    assert (nothing.size, nothing.low, nothing.high) == (None, None, None)
    assert nothing.sentence == "no node-day was seen yet"
    quiet = suggested(100, 0, 3000.0)
    assert (quiet.size, quiet.low, quiet.high) == (0, 0, 1)


def test_each_class_has_its_own_failures() -> None:
    """Failures of unknown nodes are nobody's."""
    found = past_by_class({"a": ["n1", "n2"], "b": ["n3"]}, [("n1", 0.0), ("n3", 1.0), ("gone", 2.0)], 10.0)
    assert {name: (past.rate.failures, past.rate.exposure) for name, past in found.items()} == {
        "a": (1, 20.0),
        "b": (1, 10.0),
    }


def test_little_evidence_changes_nothing() -> None:
    """At first the start size, later what it was; with a sentence."""
    little = suggested(10, 9, 100.0)
    first = next_size(None, little, LIMITS, DAY_S)
    assert (first.size, first.reason) == (2, "too little evidence yet (100 of 1000 node-days): it stays 2")
    assert next_size(AutoSize(4, 0.0, ""), little, LIMITS, 10 * DAY_S).size == 4


def test_it_follows_by_one_a_day() -> None:
    """Up to the bound and no further, however often it is asked."""
    assert PLENTY.size is not None
    assert PLENTY.size > 5
    size, sizes = next_size(None, PLENTY, LIMITS, 0.0), list[int]()
    for hour in range(1, 24 * 6):
        size = next_size(size, PLENTY, LIMITS, hour * 3600.0)
        sizes.append(size.size)
    assert [sizes[day * 24 - 2] for day in range(1, 6)] == [2, 3, 4, 5, 5]
    assert "bounded to 5" in size.reason


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40_000), st.integers(-40, 400)), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_any_history_keeps_the_bounds(history: list[tuple[int, int, int]], start: int, most: int) -> None:
    """Whatever the journal says, and when: between 1 and the most, one step at a time, a day apart."""
    limits, size, now_s, changed_s = AutoLimits(start, most, 500.0), None, 0.0, None
    for failures, node_days, hours in history:
        now_s += max(0, hours) * 3600.0
        after = next_size(size, suggested(150, failures, float(node_days)), limits, now_s)
        assert 1 <= after.size <= most
        if size is not None and after.size != size.size:
            assert abs(after.size - size.size) == 1
            assert changed_s is None or now_s - changed_s >= DAY_S
            changed_s = now_s
        size = after


def test_independent_failures_are_as_many_as_were_drawn() -> None:
    """A Poisson process of single failures loses next to none."""
    rng = random.Random(3)
    drawn = [(f"n{rng.randrange(1000)}", rng.uniform(0, 30 * DAY_S)) for _ in range(300)]
    assert independent_failures(drawn) == pytest.approx(300, abs=3)


def test_a_few_minutes_are_no_evidence() -> None:
    """The sentence says so, and has no powers of ten."""
    early = suggested(6, 1, 0.004)
    assert early.sentence.startswith("1 failure in 0.004 node-days (250 a node-day, 95 %: 6.3 to 1,393)")
    assert early.sentence.endswith("less than a day of these nodes was seen, which is no evidence yet")
    assert "evidence" not in suggested(6, 1, 60.0).sentence
