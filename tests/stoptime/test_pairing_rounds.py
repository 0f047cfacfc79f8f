"""Pairs of nodes: whatever is broken, the right node or link is named, or nobody."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.stoptime import pairing
from slurm_robust.stoptime.pairing import Group, GroupResult, PairOutcome, PairVerdict


class Truth:
    """Which nodes and links are broken; the test of a group fails where it has one of them."""

    def __init__(self, nodes: Sequence[str], broken: set[str] | None = None, links: set[frozenset[str]] | None = None):
        self.nodes, self.broken, self.links = nodes, broken or set(), links or set()

    def test(self, group: Group) -> GroupResult:
        """The result of a group."""
        members = set(group)
        bad = bool(members & self.broken) or any(link <= members for link in self.links)
        return GroupResult(group, PairOutcome.FAILED if bad else PairOutcome.PASSED, "wrong data" if bad else "")

    def all_rounds(self) -> tuple[list[list[GroupResult]], PairVerdict]:
        """Every round until nothing more can be learnt, and the verdict."""
        rounds: list[list[GroupResult]] = []
        while groups := pairing.next_round(self.nodes, rounds):
            taken = [node for group in groups for node in group]
            assert len(taken) == len(set(taken)), "a node is in two groups of one round"
            rounds.append([self.test(group) for group in groups])
            assert len(rounds) <= pairing.MAX_ROUNDS
        return rounds, pairing.judge(self.nodes, rounds)


def names(count: int) -> tuple[str, ...]:
    """`n1` to `nCOUNT`."""
    return tuple(f"n{i}" for i in range(1, count + 1))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 31, 128, 4095, 4096])
def test_the_first_round_has_all_nodes_once(count: int) -> None:
    """Pairs of neighbours, with one triple where the number is odd; then all with their other neighbour."""
    groups = pairing.first_round(names(count))
    assert sorted(node for group in groups for node in group) == sorted(names(count))
    assert [len(group) for group in groups if len(group) != 2] == ([3] if count % 2 else [])
    rounds, verdict = Truth(names(count)).all_rounds()
    assert len(rounds) == {2: 1, 3: 1, 4: 3, 5: 4}.get(count, 2)
    assert verdict == PairVerdict()
    together = {frozenset(pair) for done in rounds for r in done for pair in combinations(r.members, 2)}
    ring = zip(names(count), (*names(count)[1:], "n1"), strict=True)
    assert {frozenset(pair) for pair in ring} <= together
    if count <= 5:
        assert together == {frozenset(pair) for pair in combinations(names(count), 2)}


def test_nodes_of_a_switch_are_neighbours() -> None:
    """topology.conf comes first, then the order of the nodes; nodes of no switch come last."""
    order = pairing.ordered(("n1", "n2", "n3", "n4", "n5"), [("n2", "n4"), ("n1", "n3")])
    assert order == ("n2", "n4", "n1", "n3", "n5")


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    """Up to half of the pairs of the first round broken, and up to one link anywhere."""
    nodes = names(draw(st.integers(2, 40)))
    broken = set(draw(st.lists(st.sampled_from(nodes), max_size=max(0, len(nodes) // 4), unique=True)))
    ends = draw(st.lists(st.lists(st.sampled_from(nodes), min_size=2, max_size=2, unique=True), max_size=1))
    return Truth(nodes, broken, {frozenset(pair) for pair in ends})


@given(truths())
def test_a_healthy_node_is_never_named(truth: Truth) -> None:
    """With one broken link and any broken nodes: who is named is broken, and so is each link that is named."""
    _, verdict = truth.all_rounds()
    assert set(verdict.broken_nodes) <= truth.broken
    assert {frozenset(link) for link in verdict.broken_links} <= truth.links
    assert verdict.untested == {}
    if not truth.broken and not truth.links:
        assert verdict == PairVerdict()


@given(truths())
def test_a_broken_node_is_named_where_two_others_can_prove_it(truth: Truth) -> None:
    """At least two healthy nodes beside it, and one pair of them that meets: it is named, not only suspected."""
    rounds, verdict = truth.all_rounds()
    proven = {node for done in rounds for r in done if not r.bad for node in r.members}
    healthy = set(truth.nodes) - truth.broken
    assert proven <= healthy
    if len(truth.nodes) >= 12 and not truth.links:
        assert set(verdict.broken_nodes) == truth.broken
        assert verdict.undecided == {}
    elif len(truth.broken) == 1 and len(truth.nodes) >= 4 and not truth.links:
        assert set(verdict.broken_nodes) == truth.broken


@given(st.integers(4, 60), st.data())
def test_a_broken_link_is_named_and_its_ends_are_not(count: int, data: st.DataObject) -> None:
    """Any link of the ring, wherever it is, and any of a few nodes."""
    nodes = names(count)
    ring = [*zip(nodes, (*nodes[1:], nodes[0]), strict=True)]
    link = frozenset(data.draw(st.sampled_from([*combinations(nodes, 2)] if count <= 5 else ring)))
    rounds, verdict = Truth(nodes, links={link}).all_rounds()
    assert verdict.broken_nodes == {}
    assert {frozenset(found) for found in verdict.broken_links} == {link}
    assert len(rounds) <= (4 if count > 5 and not count % 2 else pairing.MAX_ROUNDS)
    assert verdict.undecided == {}


@st.composite
def two_faults(draw: st.DrawFn) -> Truth:
    """One or two faults anywhere: broken nodes, broken links, or one of each; two links may have an end in common."""
    nodes = names(draw(st.integers(2, 64)))
    several = draw(st.integers(1, 2))
    broken = draw(st.sets(st.sampled_from(nodes), max_size=several))
    pairs = st.sets(st.sampled_from(nodes), min_size=2, max_size=2).map(frozenset)
    links = draw(st.sets(pairs, max_size=several - len(broken)))
    return Truth(nodes, broken, links)


def wrongly_named(truth: Truth, verdict: PairVerdict) -> set[str]:
    """Healthy nodes that are named, but for those that the sentence itself doubts: all links that there are failed."""
    wrong = set(verdict.broken_nodes) - truth.broken
    return {
        node
        for node in wrong
        if "or its links" not in verdict.broken_nodes[node] or sum(node in link for link in truth.links) < 2
    }


@given(two_faults())
def test_no_healthy_node_is_named_for_one_or_two_faults(truth: Truth) -> None:
    """Two broken links of one node are not that node, where there is a third one to meet; named links are broken."""
    _, verdict = truth.all_rounds()
    assert not wrongly_named(truth, verdict)
    if len(truth.nodes) > 4:
        assert set(verdict.broken_nodes) <= truth.broken
    assert {frozenset(link) for link in verdict.broken_links} <= truth.links
    if len(truth.nodes) >= 8:
        assert set(verdict.broken_nodes) == truth.broken


@pytest.mark.parametrize("count", range(4, 9))
def test_every_place_of_two_broken_links_of_one_node(count: int) -> None:
    """All of them, in small allocations, where few others can prove it."""
    nodes = names(count)
    for node in nodes:
        for ends in combinations([other for other in nodes if other != node], 2):
            _, verdict = Truth(nodes, links={frozenset((node, end)) for end in ends}).all_rounds()
            assert verdict.broken_nodes == {}, (node, ends)


def test_a_node_that_fails_with_the_only_two_others_may_have_two_broken_links() -> None:
    """The sentence says so."""
    _, verdict = Truth(names(3), {"n2"}).all_rounds()
    assert "or its links to both" in verdict.broken_nodes["n2"]


@given(st.integers(65, 4096), st.data())
@settings(max_examples=10, deadline=None)
def test_large_allocations_are_planned_within_seconds(count: int, data: st.DataObject) -> None:
    """Any two faults in up to 4,096 nodes, all rounds and the verdict; nobody is named wrongly."""
    nodes = names(count)
    broken = set(data.draw(st.lists(st.sampled_from(nodes), max_size=1)))
    links = data.draw(st.sets(st.sets(st.sampled_from(nodes), min_size=2, max_size=2).map(frozenset), max_size=1))
    began_s = time.process_time()
    _, verdict = Truth(nodes, broken, links).all_rounds()
    assert time.process_time() - began_s < 5
    assert set(verdict.broken_nodes) == broken


def test_two_nodes_cannot_tell() -> None:
    """One pair that fails: it is said, and nobody is named."""
    _, verdict = Truth(names(2), {"n1"}).all_rounds()
    assert verdict.broken_nodes == {}
    assert "two nodes cannot tell" in verdict.undecided["n1", "n2"]


def test_when_all_pairs_fail_nobody_is_named() -> None:
    """A wrong interface breaks every pair: the sentence says so."""
    nodes = names(6)
    _, verdict = Truth(nodes, set(nodes)).all_rounds()
    assert verdict.broken_nodes == {}
    assert all("points at the set-up" in reason for reason in verdict.undecided.values())


def test_three_nodes_name_the_one_that_fails_with_both() -> None:
    """The triple fails, then its pairs show who it was; one broken link among three stays undecided or a link."""
    _, verdict = Truth(names(3), {"n2"}).all_rounds()
    assert set(verdict.broken_nodes) == {"n2"}
    _, verdict = Truth(names(3), links={frozenset(("n1", "n2"))}).all_rounds()
    assert verdict.broken_nodes == {}


def test_four_thousand_nodes_with_a_hundred_broken_end_in_four_rounds() -> None:
    """The size of the largest trainings, with every fortieth node broken."""
    nodes = names(4096)
    broken = set(nodes[::40])
    rounds, verdict = Truth(nodes, broken).all_rounds()
    assert set(verdict.broken_nodes) == broken
    assert len(rounds) <= 4


def test_a_fault_that_passes_the_second_time_is_undecided() -> None:
    """Both ends pass with others, and the pair passes when it is tried again: nobody is named, and it is said."""
    nodes = names(6)
    rounds = [[Truth(nodes, {"n1"}).test(group) for group in pairing.first_round(nodes)]]
    while groups := pairing.next_round(nodes, rounds):
        rounds.append([GroupResult(group, PairOutcome.PASSED) for group in groups])
    verdict = pairing.judge(nodes, rounds)
    assert (verdict.broken_nodes, verdict.broken_links) == ({}, {})
    assert "failed together once and passed later" in verdict.undecided["n1", "n2"]


def test_a_node_that_left_is_untested_and_its_partner_meets_another() -> None:
    """A node that dies in the test is not blamed, nor is its partner, which is tested again."""
    nodes = names(6)
    gone = GroupResult(("n1", "n2"), PairOutcome.NOT_RUN, "n2 left", absent=frozenset({"n2"}))
    rounds = [[gone, *(GroupResult(group, PairOutcome.PASSED) for group in pairing.first_round(nodes)[1:])]]
    groups = pairing.next_round(nodes, rounds)
    assert [node for group in groups for node in group if node in ("n1", "n2")] == ["n1"]
    rounds.append([GroupResult(group, PairOutcome.PASSED) for group in groups])
    assert pairing.next_round(nodes, rounds) == (("n6", "n1"),)
    rounds.append([GroupResult(("n6", "n1"), PairOutcome.PASSED)])
    assert pairing.next_round(nodes, rounds) == ()
    assert pairing.judge(nodes, rounds) == PairVerdict(untested={"n2": "n2 left"})


def test_a_slow_pair_is_judged_by_the_rounds_median() -> None:
    """Below the share of the median it counts as slow, with both figures; too few pairs have no median."""
    rates = [10.0, 9.0, 11.0, 2.0]
    results = [
        GroupResult((f"n{2 * i + 1}", f"n{2 * i + 2}"), PairOutcome.PASSED, "", {"all_reduce": rate})
        for i, rate in enumerate(rates)
    ]
    judged = pairing.judge_bandwidth(results, 0.5)
    assert [result.outcome for result in judged] == [PairOutcome.PASSED] * 3 + [PairOutcome.SLOW]
    assert judged[3].reason == "all_reduce at 2 GB/s, the median of the round is 9.5 GB/s"
    assert not any(result.bad for result in pairing.judge_bandwidth(results[2:], 0.5))
    again = pairing.judge_bandwidth(results[3:], 0.5, [judged])
    assert again[0].outcome is PairOutcome.SLOW, "a pair that meets alone is judged by the first round"


@pytest.mark.parametrize("first", [("n1", "n2"), ("n5", "n6", "n7")])
def test_a_group_that_is_slow_once_and_fast_when_it_meets_again_is_no_finding(first: Group) -> None:
    """Another program had the processors for a moment; one that received wrong data once stays undecided."""
    nodes = names(7)
    for outcome, findings in ((PairOutcome.SLOW, 0), (PairOutcome.FAILED, 1)):
        groups = pairing.first_round(nodes)
        rounds = [[GroupResult(group, outcome if group == first else PairOutcome.PASSED) for group in groups]]
        while found := pairing.next_round(nodes, rounds):
            rounds.append([GroupResult(group, PairOutcome.PASSED) for group in found])
        verdict = pairing.judge(nodes, rounds)
        assert len(verdict.undecided) == findings
        assert verdict.broken_nodes == verdict.broken_links == verdict.untested == {}
