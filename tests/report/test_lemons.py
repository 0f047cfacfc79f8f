"""Lemons: found within the expected number of failures, and no healthy node taken for one.

The constants were chosen with seeds 1000 to 1199; other seeds are tested here.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_rows import DAY_S, HOUR_S, attempt_row, drain_row, facts_of, incident_row, job_row
from simulated_month import simulated_month

from slurm_robust.daemon.store.attempt_ledger import ClusterSize
from slurm_robust.report.facts import Facts, NodeDrain, NodeStrike
from slurm_robust.report.lemons import ERROR, MIN_FAILURES, binomial_tail, failures_of, find_lemons, signals_of

LEMON = "n0"


def failures_needed(nodes: int, factor: float) -> int:
    """How many failures a node has had on average when it is found, that fails `factor` times as often as the others.

    All nodes have the same days, and each part of the cluster has as many failures as it is expected to have.
    """
    count = MIN_FAILURES
    while binomial_tail(count, round(count + count / factor * (nodes - 1)), 1 / nodes) > ERROR / nodes:
        count += 1
    return count


def drains_of(seed: int, nodes: int, factor: float, days: float, per_day: float = 0.05) -> list[NodeDrain]:
    """Failures of a cluster in which the first node fails `factor` times as often as each other."""
    rng, drains = random.Random(seed), list[NodeDrain]()
    for number in range(nodes):
        at_s = 0.0
        while (at_s := at_s + rng.expovariate(per_day * (1 if number else factor)) * DAY_S) < days * DAY_S:
            drains.append(drain_row(f"n{number}", at_s, ended_at_s=at_s + HOUR_S))
    return sorted(drains, key=lambda drain: drain.at_s)


def until(drains: list[NodeDrain], nodes: int, to_s: float) -> Facts:
    """What a report at that time would read."""
    return Facts(0.0, to_s, to_s, sizes=(ClusterSize(0.0, "gpu:8", nodes, 8),), drains=tuple(drains))


def failures_when_found(seed: int, nodes: int, days: float) -> float:
    """The lemon's failures when it is named first; no other node may be named on the way."""
    drains, count = drains_of(seed, nodes, 5.0, days), 0
    for number, drain in enumerate(drains, 1):
        count += drain.node == LEMON
        if drain.node == LEMON and count >= 5:
            named = {lemon.node for lemon in find_lemons(until(drains[:number], nodes, drain.at_s + 1), ()).lemons}
            assert named <= {LEMON}, f"seed {seed}: {named}"
            if named:
                return count
    return math.inf


def test_a_lemon_among_fifty_is_found_in_time() -> None:
    """Five times the rate: in the median within the expected number of its failures; most of all within twice that."""
    needed = failures_needed(50, 5.0)
    assert needed == 12
    found = sorted(failures_when_found(seed, 50, 100.0) for seed in range(100))
    assert found[50] <= needed
    assert sum(count <= 2 * needed for count in found) >= 95


def test_a_lemon_among_two_thousand_is_found_in_time() -> None:
    """More nodes need more evidence, but not much more."""
    needed = failures_needed(2000, 5.0)
    assert needed == 16
    found = sorted(failures_when_found(seed, 2000, 100.0) for seed in range(3))
    assert found[1] <= needed


@pytest.mark.parametrize(("nodes", "seeds"), [(50, 100), (2000, 2)])
def test_no_healthy_node_is_a_lemon(nodes: int, seeds: int) -> None:
    """In a hundred clusters, after each thirty days of ninety."""
    for seed in range(seeds):
        drains = drains_of(seed, nodes, 1.0, 90.0)
        for days in (30, 60, 90):
            past = [drain for drain in drains if drain.at_s < days * DAY_S]
            assert find_lemons(until(past, nodes, days * DAY_S)).lemons == ()


def test_a_lemon_of_a_simulated_cluster_is_found_with_its_signals() -> None:
    """Jobs, incidents and drains tell of the same failures; each failure counts once."""
    facts, truth = simulated_month(1, jobs=2000, days=90.0, failures_per_day=0.03, lemons=(4,), lemon_factor=8.0)
    report = find_lemons(facts)
    assert [lemon.node for lemon in report.lemons] == list(truth.lemons)
    (lemon,) = report.lemons
    assert lemon.failures == pytest.approx(truth.node_failures[lemon.node], abs=1)
    assert lemon.kinds["incident"] > 3
    assert "times as many as the others" in lemon.why
    assert report.sentence.startswith("1 of 50 nodes")


@pytest.mark.parametrize("seed", range(10))
def test_several_lemons_do_not_hide_each_other(seed: int) -> None:
    """The worst leaves the comparison, then the next one is seen."""
    rng = random.Random(seed)
    drains = drains_of(seed, 48, 1.0, 60.0)
    for name, count in (("bad1", 60), ("bad2", 25)):
        drains += [drain_row(name, rng.uniform(0, 60) * DAY_S, ended_at_s=60 * DAY_S) for _ in range(count)]
    assert {lemon.node for lemon in find_lemons(until(drains, 50, 60 * DAY_S)).lemons} == {"bad1", "bad2"}


def test_a_switch_makes_no_lemons() -> None:
    """Ten times all nodes of a rack fail within seconds of each other: one cause each time."""
    drains = [
        drain_row(f"n{n}", day * DAY_S + n, ended_at_s=day * DAY_S + 900) for day in range(1, 11) for n in range(32)
    ]
    report = find_lemons(until(drains, 1000, 30 * DAY_S))
    assert (report.lemons, report.watched) == ((), ())
    assert report.failures == pytest.approx(10.0)


def test_two_nodes_of_a_leaf_switch_make_no_lemons() -> None:
    """Two are too few to be told from chance by their times: the reasons of their drains name the switch."""
    reason = "srobust: no link on mlx5_0/1 (DOWN, Disabled); look at leaf switch s0 first: n[0-1] failed together"
    named, plain = (
        find_lemons(
            until([drain_row(f"n{n}", day * DAY_S + n, why) for day in range(1, 11) for n in (0, 1)], 1000, 30 * DAY_S)
        )
        for why in (reason, "srobust: no link on mlx5_0/1 (DOWN, Disabled)")
    )
    assert (named.lemons, named.failures) == ((), 0)
    assert [lemon.node for lemon in plain.lemons] == ["n0", "n1"]


def test_large_jobs_make_no_lemons() -> None:
    """Jobs of 512 nodes are lost again and again, and nobody knows to which node: 1/512 of a failure on each."""
    names = tuple(f"n{n}" for n in range(512))
    jobs = tuple(job_row(day * DAY_S, day * DAY_S + HOUR_S, names, state="NODE_FAIL") for day in range(28))
    report = find_lemons(facts_of(jobs=jobs, sizes=(ClusterSize(0.0, "gpu:8", 2000, 8),)))
    assert (report.lemons, report.watched) == ((), ())
    assert report.failures == pytest.approx(28.0)


def test_signals_of_one_failure_count_once() -> None:
    """A lost job, the incident, the drain and the strike of the same hour; a day later it is another failure."""
    facts = facts_of(
        incidents=(incident_row(DAY_S, evict=("n1",)),),
        drains=(drain_row("n1", DAY_S + 60), drain_row("n1", 2 * DAY_S)),
        strikes=(NodeStrike("n1", DAY_S + 90, 7, "l", "ada", "i0", "claimed"),),
        jobs=(job_row(0.0, DAY_S + 5, ("n1", "n2"), state="NODE_FAIL"),),
    )
    failures = failures_of(signals_of(facts))
    weights = {(f[0].node, round(f[0].at_s / DAY_S)): max(s.weight for s in f) for f in failures}
    assert weights == {("n1", 1): 1.0, ("n2", 1): 0.5, ("n1", 2): 1.0}


def test_one_user_makes_no_lemon() -> None:
    """A user's program suspects a node in thirty jobs, and the node passes each check; two users' claims count more."""
    strikes = tuple(NodeStrike("n1", n * DAY_S, n, f"l{n}", "eve", f"i{n}", "passed") for n in range(30))
    incidents = tuple(incident_row(n * DAY_S, n, user="eve", blame="") for n in range(30))
    sizes = (ClusterSize(0.0, "gpu:8", 50, 8),)
    assert find_lemons(facts_of(strikes=strikes, incidents=incidents, sizes=sizes)).lemons == ()
    assert find_lemons(facts_of(strikes=strikes, incidents=incidents, sizes=sizes)).failures == 2.0


def test_reverted_drains_and_strikes_of_this_report_are_no_evidence() -> None:
    """Otherwise a lemon would stay one because it was named one."""
    drains = tuple(replace(drain_row("n1", n * DAY_S, ended_at_s=n * DAY_S + 60), reverted=True) for n in range(20))
    strikes = tuple(NodeStrike("n1", n * DAY_S, 0, "", "", "lemon.n1.3", "fails too often") for n in range(20))
    assert signals_of(facts_of(drains=drains, strikes=strikes)) == []


def test_a_node_that_is_rarely_used_needs_more_than_one_failure() -> None:
    """It ran for a minute, and failed in it."""
    jobs = [job_row(n * DAY_S / 4, (n + 1) * DAY_S / 4, (f"n{n % 40}",)) for n in range(100)]
    jobs.append(job_row(DAY_S, DAY_S + 60, ("rare",), state="NODE_FAIL"))
    report = find_lemons(facts_of(jobs=tuple(jobs), attempts=(attempt_row(0.0, DAY_S, nodes_named=("n1", "n2")),)))
    assert (report.lemons, report.watched) == ((), ())


def test_nothing_to_compare() -> None:
    """No node, one node, no failure: a sentence."""
    assert find_lemons(facts_of()).sentence == "No node is known, so none can be compared."
    alone = find_lemons(facts_of(drains=tuple(drain_row("n1", n * DAY_S) for n in range(9))))
    assert (alone.nodes, alone.lemons) == (1, ())
    quiet = find_lemons(facts_of(sizes=(ClusterSize(0.0, "", 4, 0),)))
    assert quiet.sentence == "4 nodes had 0 failures in all: too few to compare them."
    once = find_lemons(facts_of(sizes=(ClusterSize(0.0, "", 4, 0),), drains=(drain_row("n1", DAY_S),)))
    assert once.sentence == "4 nodes had 1 failure in all: too few to compare them."
    assert find_lemons(Facts(5.0, 5.0, 5.0)).nodes == 0


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0.0, 1.0))
def test_the_binomial_tail_is_the_sum_of_its_terms(count: int, of: int, share: float) -> None:
    """By the definition."""
    terms = (math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(max(0, count), of + 1))
    assert binomial_tail(count, of, share) == pytest.approx(math.fsum(terms), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 30)), max_size=60))
def test_any_failures_give_a_report(rows: list[tuple[int, float]]) -> None:
    """Weights never exceed the drains, chances are probabilities, and lemons have few of them."""
    drains = tuple(drain_row(f"n{node}", day * DAY_S) for node, day in rows)
    report = find_lemons(facts_of(drains=drains, sizes=(ClusterSize(0.0, "", 10, 0),)))
    assert report.failures <= len(rows) + 1e-9
    for lemon in (*report.lemons, *report.watched):
        assert 0 <= lemon.chance <= 1
    assert all(lemon.chance <= ERROR for lemon in report.lemons)
