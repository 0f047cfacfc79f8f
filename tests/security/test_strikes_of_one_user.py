"""One user's strikes against a node drain it with another user's help alone, not by their number."""

from __future__ import annotations

from slurm_robust.policy.cluster.strikes import Strike, drain_reason, held_back

ANN = [Strike(n, f"l{n}", "ann") for n in range(1, 30)]
BEN = [Strike(n, f"l{n}", "ben") for n in (101, 102)]


def test_many_strikes_of_one_user_and_one_of_another_drain_nothing() -> None:
    """The innocent second one is what the attacker waits for: a user counts for half of what is needed, at most."""
    assert drain_reason(ANN, 4, 14.0) == ""
    assert drain_reason([*ANN, BEN[0]], 4, 14.0) == ""
    assert drain_reason([*ANN, BEN[0]], 5, 14.0) == ""
    assert "ben" in held_back([*ANN, BEN[0]], 5)


def test_users_who_agree_still_drain() -> None:
    """As many of others as of the one; and a failed test, which no user can forge, makes all of them count."""
    assert drain_reason([*ANN, *BEN], 4, 14.0)
    assert drain_reason([*ANN[:2], BEN[0]], 3, 14.0), "the usual number of strikes, as before"
    assert drain_reason([*ANN, Strike(0, "", "", "failed")], 5, 14.0)
