"""How many nodes the claims of jobs may take out of service: by user and hour, and within the breaker's bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.site import BreakerConfig
from slurm_robust.policy.cluster.breaker import (
    CLAIM_WINDOW_S,
    ClaimBounds,
    ClaimedNode,
    ClaimedSuspects,
    Drain,
    TakenOut,
    allowed_out,
    kept_for_claim,
    over_limit,
)

SIX = {"main": frozenset(f"n{i}" for i in range(1, 7))}
HUNDRED = {"main": frozenset(f"n{i}" for i in range(1, 101))}
WIDE = BreakerConfig(max_drains=100, max_partition_share=1.0)


def kept(
    taken: TakenOut,
    *nodes: str,
    user: str = "ann",
    grade: str = "",
    config: BreakerConfig = WIDE,
    partitions: dict[str, frozenset[str]] = HUNDRED,
    now_s: float = 1000.0,
    most: int = 3,
) -> str:
    """Why these suspects stay in service."""
    suspects = ClaimedSuspects(frozenset(nodes), user, grade)
    return kept_for_claim(suspects, taken, ClaimBounds(partitions, config, most), now_s)


@pytest.mark.parametrize(
    ("grade", "said"),
    [("", ""), ("certain", ""), ("strong", ""), ("weak", "weak"), ("none", "no evidence"), ("newer", "")],
)
def test_weak_evidence_takes_no_node_out(grade: str, said: str) -> None:
    """A claim of a version that grades nothing, or in words of a newer one, is judged by the other bounds."""
    assert said in kept(TakenOut(), "n1", grade=grade)
    assert bool(kept(TakenOut(), "n1", grade=grade)) is bool(said)


def test_the_fourth_node_of_a_user_within_an_hour_stays_in_service() -> None:
    """Another user's does not, nor does the fourth one an hour later; the site chooses the number."""
    three = TakenOut(claimed=tuple(ClaimedNode(f"n{i}", "ann", 100.0 * i) for i in (1, 2, 3)))
    assert "quarantine.max_per_user_hour" in kept(three, "n9")
    assert kept(three, "n9", user="ben") == ""
    assert kept(three, "n9", now_s=100.0 + CLAIM_WINDOW_S) == ""
    assert kept(three, "n9", most=4) == ""
    assert kept(three, "n8", "n9", most=4), "all suspects of a claim, or none"
    assert kept(TakenOut(), "n9", most=0)


def test_a_node_that_passed_its_check_and_is_claimed_again_counts_again() -> None:
    """One that is still out costs nothing more, whichever of the user's jobs names it."""
    three = tuple(ClaimedNode("n1", "ann", 100.0 * i) for i in (1, 2, 3))
    assert kept(TakenOut(claimed=three), "n1")
    assert kept(TakenOut(claimed=three, quarantined=(Drain("n1", 300.0),)), "n1") == ""
    assert kept(TakenOut(claimed=three, drains=(Drain("n1", 300.0),)), "n1") == ""


def test_quarantines_and_drains_share_the_bounds_of_the_breaker() -> None:
    """Of six nodes two may be out, whichever way they went; three users' claims take no third one out."""
    one_each = TakenOut(drains=(Drain("n1", 10.0),), quarantined=(Drain("n2", 20.0),))
    said = kept(one_each, "n3", user="cy", config=BreakerConfig(), partitions=SIX)
    assert "partition main" in said
    assert kept(one_each, "n2", user="cy", config=BreakerConfig(), partitions=SIX) == ""
    assert over_limit(one_each.out, SIX, BreakerConfig(), now_s=1000, more=frozenset({"n3"}))
    assert not over_limit(one_each.out, SIX, BreakerConfig(), now_s=1000)


def test_a_quarantine_that_ended_well_counts_for_claims_and_not_for_drains() -> None:
    """Eight in an hour are enough to doubt the claims; a node that fails its check is drained all the same."""
    back = TakenOut(claimed=tuple(ClaimedNode(f"n{i}", f"u{i}", 10.0 * i) for i in range(1, 9)))
    assert "breaker.max_drains" in kept(back, "n50", config=BreakerConfig())
    assert kept(back, "n50", config=BreakerConfig(), now_s=10.0 + CLAIM_WINDOW_S) == ""
    assert over_limit(back.out, HUNDRED, BreakerConfig(), now_s=1000, more=frozenset({"n50"})) == ""


def test_a_node_that_came_back_counts_when_it_goes_again() -> None:
    """It was in quarantine within the window; meanwhile others went, and the share is full."""
    taken = TakenOut(
        quarantined=(Drain("n2", 20.0), Drain("n3", 30.0)),
        claimed=tuple(ClaimedNode(f"n{i}", "cy", 9.0) for i in (1, 2)),
    )
    assert "partition main" in kept(taken, "n1", config=BreakerConfig(), partitions=SIX)


NODES = st.sampled_from([f"n{i}" for i in range(1, 13)])
TWELVE = {"main": frozenset(f"n{i}" for i in range(1, 13)), "few": frozenset(f"n{i}" for i in range(1, 5))}
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.sets(NODES, min_size=1, max_size=3), st.sampled_from(["ann", "ben", "cy"])),
        st.tuples(st.just("passes"), st.sets(NODES, min_size=1, max_size=3), st.just("")),
        st.tuples(st.just("fails"), st.sets(NODES, min_size=1, max_size=3), st.just("")),
        st.tuples(st.just("drain"), st.sets(NODES, min_size=1, max_size=1), st.just("")),
        st.tuples(st.just("repaired"), st.sets(NODES, min_size=1, max_size=3), st.just("")),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(0, 3), st.integers(0, 8), st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.floats(1.0, 900.0))
def test_no_sequence_of_claims_passes_a_bound(
    events: list[tuple[str, set[str], str]], most: int, max_drains: int, share: float, apart_s: float
) -> None:
    """A user's claims never take more nodes out within an hour, and nodes that are out never pass a closed breaker."""
    config = BreakerConfig(max_drains=max_drains, max_partition_share=share)
    drained: dict[str, float] = {}
    quarantined: dict[str, float] = {}
    ended: list[Drain] = []
    claimed: list[ClaimedNode] = []
    for number, (what, nodes, user) in enumerate(events):
        now_s = 1000.0 + number * apart_s
        taken = TakenOut(
            drains=(*(Drain(n, at_s) for n, at_s in drained.items()), *ended),
            quarantined=tuple(Drain(n, at_s) for n, at_s in quarantined.items()),
            claimed=tuple(claimed),
        )
        if what == "claim":
            suspects = ClaimedSuspects(frozenset(nodes), user, "strong")
            if kept_for_claim(suspects, taken, ClaimBounds(TWELVE, config, most), now_s):
                continue
            claimed += [ClaimedNode(n, user, now_s) for n in sorted(nodes - {*quarantined, *drained})]
            quarantined |= {n: now_s for n in nodes if n not in quarantined and n not in drained}
        elif what == "passes":
            quarantined = {n: at_s for n, at_s in quarantined.items() if n not in nodes}
        elif what == "repaired":
            ended += [Drain(n, at_s, out=False) for n, at_s in drained.items() if n in nodes]
            drained = {n: at_s for n, at_s in drained.items() if n not in nodes}
        elif not over_limit(taken.out, TWELVE, config, now_s=now_s, more=frozenset(nodes)):
            drained |= {n: now_s for n in nodes if n not in drained and (what == "drain" or n in quarantined)}
            quarantined = {n: at_s for n, at_s in quarantined.items() if n not in drained}
        for who in ("ann", "ben", "cy"):
            recent = [c for c in claimed if c.user == who and c.at_s > now_s - CLAIM_WINDOW_S]
            assert len(recent) <= most
        out = drained.keys() | quarantined.keys()
        assert all(len(out & members) <= allowed_out(members, config) for members in TWELVE.values())
        within = {n for n, at_s in (*drained.items(), *quarantined.items()) if at_s > now_s - config.window_s}
        assert len(within) <= max_drains
