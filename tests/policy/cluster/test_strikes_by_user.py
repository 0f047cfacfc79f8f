"""Strikes count by job, lineage and user; claims of one user alone drain nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.cluster.strikes import (
    Strike,
    by_user,
    counted,
    drain_reason,
    held_back,
    jobs_that_suspect,
)

ANN = [Strike(n, f"l{n}", "ann") for n in (1, 2, 3)]
BEN = Strike(4, "l4", "ben")


@pytest.mark.parametrize(
    ("strikes", "drained"),
    [
        (ANN, ""),
        ([*ANN[:2], BEN], "3 strikes in 14 days, from different jobs (ann 2, ben 1)"),
        ([*ANN[:2], Strike(3, "l3", "ann", "failed")], "3 strikes in 14 days, from different jobs (ann 3)"),
        ([*ANN[:1], BEN], ""),
        ([Strike(n, f"l{n}") for n in (1, 2, 3)], ""),
        ([*ANN[:2], Strike(9, "l9")], ""),
        ([Strike(1, "l", "ann"), Strike(2, "l", "ben"), Strike(3, "l", "cy")], ""),
    ],
    ids=["one user", "two users", "a failed test", "too few", "nobody known", "one unknown", "one lineage"],
)
def test_what_drains(strikes: list[Strike], drained: str) -> None:
    """Two users, or one failed test, beside as many strikes as the site wants."""
    assert drain_reason(strikes, 3, 14.0) == drained


def test_what_would_be_needed_is_said() -> None:
    """And nothing if too few strikes are there, or the node is drained."""
    said = held_back(ANN, 3)
    assert said.startswith("3 strikes or more, all by jobs of ann: not drained")
    assert "another user" in said
    assert "a failed test" in said
    assert held_back([*ANN, Strike(9, "l9", "ann")], 3) == said, "the same sentence, so that it is told once"
    assert held_back(ANN[:2], 3) == held_back([*ANN, BEN], 3) == ""


users = st.sampled_from(["", "ann", "ben"])
some = st.lists(st.builds(Strike, st.integers(0, 4), st.sampled_from("abcd"), users, st.sampled_from(["", "x"])))


@given(some, st.integers(1, 4))
def test_nothing_is_drained_and_held_back(strikes: list[Strike], needed: int) -> None:
    """As many strikes as are needed do one of the two; fewer do neither."""
    enough = counted(strikes) >= needed
    assert enough is (bool(drain_reason(strikes, needed, 1.0)) != bool(held_back(strikes, needed)))
    assert all(count <= counted(strikes) for count in by_user(strikes).values())


def test_jobs_that_suspect_count_with_the_one_in_quarantine() -> None:
    """A test that accuses a node is no job."""
    assert jobs_that_suspect([], 1, "l1") == 1
    assert jobs_that_suspect(ANN[:1], 2, "l2") == 2
    assert jobs_that_suspect(ANN[:1], 1, "l1") == 1
    assert jobs_that_suspect([Strike(0, "", "", "x")], 1, "l1") == 1
    assert jobs_that_suspect(ANN[:2], 0, "") == 2
