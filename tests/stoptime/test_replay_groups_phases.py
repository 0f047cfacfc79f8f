"""Who replays with whom, and who is named, for every fault pattern that a property can be stated for."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from slurm_robust.stoptime.replay_groups import (
    MAX_PHASES,
    ReplayGroup,
    ReplayOutcome,
    ReplayResult,
    ReplayVerdict,
    judge,
    next_groups,
)

Fails = Callable[[ReplayGroup], bool]


def names(count: int) -> tuple[str, ...]:
    """n0, n1, and so on."""
    return tuple(f"n{number}" for number in range(count))


def replayed(nodes: tuple[str, ...], size: int, fails: Fails, phases: int = MAX_PHASES) -> list[ReplayResult]:
    """All results of honest groups; each wave runs every node once at most, and every group has its size."""
    results: list[ReplayResult] = []
    while groups := next_groups(nodes, size, results):
        used = [node for group in groups for node in group.nodes]
        assert len(used) == len(set(used))
        assert all(len(group.nodes) == size for group in groups)
        if groups[0].phase > phases:
            break
        for group in groups:
            outcome = ReplayOutcome.FAILED if fails(group) else ReplayOutcome.PASSED
            results.append(ReplayResult(group, outcome, "exit code 1"))
    return results


def verdict_of(count: int, size: int, faulty: set[str], phases: int = MAX_PHASES) -> ReplayVerdict:
    """The verdict over nodes of which these always fail."""
    results = replayed(names(count), size, lambda group: bool(faulty & set(group.nodes)), phases)
    return judge(names(count), size, results)


def test_the_example_of_the_paper() -> None:
    """m=4, n=6: node 13 is in the fourth block and in the second spread group, and no other node is in both."""
    results = replayed(names(24), 4, lambda group: "n13" in group.nodes)
    failed = [r.group for r in results if r.outcome is ReplayOutcome.FAILED]
    assert [g.nodes for g in failed[:2]] == [("n12", "n13", "n14", "n15"), ("n1", "n7", "n13", "n19")]
    assert [(g.phase, g.members, len(g.fillers)) for g in failed[2:]] == [(3, ("n13",), 3)]
    assert list(judge(names(24), 4, results[:12]).broken) == ["n13"]
    verdict = judge(names(24), 4, results)
    assert list(verdict.broken) == ["n13"]
    assert not verdict.undecided
    assert "with n12, n14, n15 (exit code 1), and with n1, n7, n19 (exit code 1), and with n" in verdict.broken["n13"]


def sizes() -> list[tuple[int, int]]:
    """Every m and n of up to 100 nodes, and some of up to 4,096."""
    small = [(m, n) for m in range(1, 51) for n in range(2, 100 // m + 1)]
    return [*small, (1, 4096), (2, 2048), (4, 1024), (16, 256), (63, 65), (64, 64), (128, 32), (1024, 4), (2048, 2)]


def test_one_broken_node_is_found_in_two_phases_where_groups_are_no_larger_than_their_number() -> None:
    """For m <= n; else in three, or what is left undecided holds it. No healthy node is named."""
    later = []
    for m, n in sizes():
        nodes = names(m * n)
        faulty = random.Random(m * n).choice(nodes)
        results = replayed(nodes, m, lambda group, faulty=faulty: faulty in group.nodes)
        two, three = (judge(nodes, m, [r for r in results if r.group.phase <= upto]) for upto in (2, 3))
        if m <= n and n > 2:
            assert (list(two.broken), two.undecided) == ([faulty], {}), (m, n)
        assert list(three.broken) == [faulty] or any(faulty in some for some in three.undecided), (m, n)
        assert {*two.broken, *three.broken} <= {faulty}, (m, n)
        at_last = judge(nodes, m, results).broken
        assert set(at_last) <= {faulty}
        later += [] if at_last else [(m, n)]
    # With two groups the suspects are a quarter of all nodes, and those that passed suffice for one group at a time.
    assert all(n <= 3 or m >= 1024 for m, n in later), later
    assert len(later) < 30


def test_no_healthy_node_is_ever_named_however_many_are_broken() -> None:
    """Random sizes, node counts that are no multiple, up to six broken nodes; each failure stays visible."""
    chance = random.Random(7)
    for _ in range(1000):
        size = chance.randint(1, 9)
        count = chance.randint(1, 90)
        faulty = set(chance.sample(names(count), min(count, chance.randint(1, 6))))
        verdict = verdict_of(count, size, faulty)
        assert set(verdict.broken) <= faulty, (size, count, faulty)
        assert verdict.broken or verdict.undecided or verdict.untested, (size, count, faulty)


def test_a_broken_node_of_a_short_group_is_found() -> None:
    """The last block, and some spread groups, lack a node; nodes that passed take part."""
    for count, size in [(23, 4), (21, 4), (50, 7), (26, 3)]:
        for at in range(count):
            verdict = verdict_of(count, size, {f"n{at}"})
            assert list(verdict.broken) == [f"n{at}"], (count, size, at, verdict)


def flaky(chance: random.Random, faulty: dict[str, float]) -> Fails:
    """Groups that fail with the probability of their faulty nodes."""
    return lambda group: any(chance.random() < p for node, p in faulty.items() if node in group.nodes)


def test_one_node_that_fails_now_and_then_never_has_a_healthy_one_named() -> None:
    """For any size and number; it is named, or it is not."""
    chance = random.Random(11)
    named = 0
    for _ in range(1000):
        size, count = chance.randint(1, 9), chance.randint(2, 90)
        faulty = f"n{chance.randrange(count)}"
        results = replayed(names(count), size, flaky(chance, {faulty: chance.choice([0.3, 0.5, 0.8])}))
        for upto in range(len(results) + 1):
            assert set(judge(names(count), size, results[:upto]).broken) <= {faulty}, (size, count, faulty)
        named += bool(judge(names(count), size, results).broken)
    assert named > 100


def test_two_nodes_that_fail_now_and_then_never_have_a_healthy_one_named() -> None:
    """Where groups are no larger than their number: each suspect runs with nodes that never failed."""
    chance = random.Random(13)
    for _ in range(1000):
        size = chance.randint(1, 6)
        count = size * chance.randint(max(2, size), 14)
        faulty = dict.fromkeys(chance.sample(names(count), 2), chance.choice([0.3, 0.5, 0.8]))
        results = replayed(names(count), size, flaky(chance, faulty))
        assert set(judge(names(count), size, results).broken) <= set(faulty), (size, count, faulty)


def test_two_broken_nodes_make_four_suspects_and_only_they_are_named() -> None:
    """n1 and n14 of 24: n2 and n13 are in failing groups twice as well, and pass among proven nodes."""
    verdict = verdict_of(24, 4, {"n1", "n14"})
    assert set(verdict.broken) == {"n1", "n14"}
    assert verdict.undecided == {}
    two = verdict_of(24, 4, {"n1", "n14"}, phases=2)
    assert (two.broken, list(two.undecided)) == ({}, [("n1", "n2"), ("n13", "n14"), ("n1", "n13"), ("n2", "n14")])


@pytest.mark.parametrize(
    ("phase", "words"),
    [(1, "all 3 groups of phase 1 fail: the program fails, or something"), (2, "all 3 groups of phase 2 fail")],
)
def test_where_all_groups_fail_nobody_is_named(phase: int, words: str) -> None:
    """Also where the first phase pointed at a block."""
    results = replayed(names(6), 2, lambda group: group.phase == phase or (phase == 2 and "n0" in group.nodes))
    verdict = judge(names(6), 2, results)
    assert (verdict.broken, list(verdict.undecided)) == ({}, [names(6)])
    assert words in verdict.undecided[names(6)]


def test_a_fault_that_the_replay_does_not_show_names_nobody() -> None:
    """No group fails: one phase is enough. Only the first fails: its group is said to be open."""
    results = replayed(names(6), 2, lambda _: False)
    assert len(results) == 3
    assert judge(names(6), 2, results) == ReplayVerdict()
    once = judge(names(6), 2, replayed(names(6), 2, lambda group: (group.phase, group.number) == (1, 0)))
    assert (once.broken, list(once.undecided)) == ({}, [("n0", "n1")])


def test_a_node_that_leaves_is_replaced_and_not_blamed() -> None:
    """n5 leaves in the first phase; its partner runs with a node that passed, and n2 is still found."""
    results: list[ReplayResult] = []
    nodes = names(12)
    while groups := next_groups(nodes, 3, results):
        for group in groups:
            if "n5" in group.nodes:
                gone = frozenset({"n5"})
                results.append(ReplayResult(group, ReplayOutcome.NOT_RUN, "n5 left", gone))
            else:
                outcome = ReplayOutcome.FAILED if "n2" in group.nodes else ReplayOutcome.PASSED
                results.append(ReplayResult(group, outcome, "exit code 1"))
    verdict = judge(nodes, 3, results)
    assert (list(verdict.broken), verdict.untested) == (["n2"], {"n5": "n5 left"})
    assert any(r.group.members == ("n3", "n4") and r.outcome is ReplayOutcome.PASSED for r in results)


def test_too_few_nodes_and_steps_that_do_not_start_are_untested() -> None:
    """Neither says anything about a node."""
    assert next_groups(names(3), 4, []) == ()
    assert judge(names(3), 4, []).untested["n0"] == "a group of the replay needs 4 nodes, and there are 3"
    refused = [ReplayResult(group, ReplayOutcome.NOT_RUN, "srun: error: no") for group in next_groups(names(4), 2, [])]
    assert next_groups(names(4), 2, refused) == ()
    assert judge(names(4), 2, refused) == ReplayVerdict(untested=dict.fromkeys(names(4), "srun: error: no"))


def test_more_groups_than_may_run_at_once_wait() -> None:
    """The rest of a phase comes next."""
    first = next_groups(names(8), 2, [], at_once=3)
    results = [ReplayResult(group, ReplayOutcome.PASSED) for group in first]
    assert [g.number for g in next_groups(names(8), 2, results, at_once=3)] == [3]


@pytest.mark.parametrize(("count", "size"), [(2, 1), (4, 1), (4, 2), (6, 2), (9, 3), (8, 4), (24, 4), (64, 8)])
def test_a_program_that_needs_one_certain_node_has_no_healthy_one_named(count: int, size: int) -> None:
    """It has the address of the first node of the whole job in its arguments, say: only groups with that node pass."""
    results = replayed(names(count), size, lambda group: "n0" not in group.nodes)
    for upto in range(1, MAX_PHASES + 1):
        verdict = judge(names(count), size, [r for r in results if r.group.phase <= upto])
        assert not verdict.broken, (upto, verdict)
        assert verdict.undecided
