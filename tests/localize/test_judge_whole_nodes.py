"""All ranks of one node at once: outside the collective, or gone without an exit code."""

from __future__ import annotations

from localize_scenes import (
    USER,
    WORKER_LOCK,
    capture,
    evidence,
    in_loader,
    named,
    process,
    rank,
    repeated,
    signal,
    waiting,
)

from slurm_robust.core.model import Conclusion, SignalKind
from slurm_robust.localize.evidence import RankCapture, RankExit
from slurm_robust.localize.judge import judge


def test_more_outside_than_wait_all_on_one_node() -> None:
    """Four ranks of n1 hang in their loaders, two ranks elsewhere wait for them: that node."""
    held = [in_loader(n, process(WORKER_LOCK), node="n1") for n in range(4)]
    found = judge(repeated(*held, waiting(4, node="n2"), waiting(5, node="n3")))
    assert named(found) == [("n1", (0, 1, 2, 3))]


def test_more_outside_than_wait_on_the_only_node() -> None:
    """Nothing says that it is the node: the program runs nowhere else."""
    held = [in_loader(n, process(WORKER_LOCK), node="n1") for n in range(4)]
    assert not judge(repeated(*held, waiting(4, node="n1"), waiting(5, node="n1"))).suspects


def test_more_outside_than_wait_on_several_nodes() -> None:
    """What those nodes share, and none of them."""
    held = [in_loader(n, process(WORKER_LOCK), node=f"n{n % 2}") for n in range(4)]
    assert not judge(repeated(*held, waiting(4, node="n2"), waiting(5, node="n3"))).suspects


def gone_from(node: str, *numbers: int) -> list[RankCapture]:
    """Ranks of this node of which no process is left."""
    return [rank(n, node=node) for n in numbers]


def test_a_whole_nodes_ranks_are_gone() -> None:
    """No exit code, no word from Slurm: all ranks of n1 are gone in two captures, and the others wait."""
    found = judge(repeated(*gone_from("n1", 0, 1), waiting(2, node="n2"), waiting(3, node="n2")))
    assert named(found) == [("n1", (0, 1))]
    assert found.corroborated
    assert found.suspects[0].infrastructure
    assert "lost all its 2 ranks" in found.reason


def test_a_whole_nodes_ranks_vanished() -> None:
    """The same as its agent reports it, without any capture: named, and not acted on early."""
    exits = [RankExit(n, "n1", 1000.0 + n) for n in (0, 1)]
    found = judge(evidence(exits=exits, nodes={0: "n1", 1: "n1", 2: "n2", 3: "n2"}))
    assert named(found) == [("n1", (0, 1))]
    assert found.suspects[0].infrastructure
    assert not found.corroborated


def test_some_of_a_nodes_ranks_are_gone() -> None:
    """A process may end by itself: nothing is said of its node."""
    found = judge(repeated(*gone_from("n1", 0), waiting(1, node="n1"), waiting(2, node="n2"), waiting(3, node="n2")))
    assert not any(s.infrastructure for s in found.suspects)


def test_an_exit_that_is_known_goes_first() -> None:
    """The program's own error ended all ranks of a node: no node is at fault."""
    words = ("Traceback (most recent call last):", "TypeError: forward() got an unexpected keyword argument")
    exits = [RankExit(n, "n1", 1000.0, 1, 0, words) for n in (0, 1)]
    ranks = [*gone_from("n1", 0, 1), waiting(2, node="n2"), waiting(3, node="n2")]
    found = judge(evidence(capture(1000.0, *ranks), capture(1005.0, *ranks), exits=exits))
    assert found.conclusion is Conclusion.USER_CODE


def test_what_slurm_says_of_the_node_goes_first() -> None:
    """The node is down: the verdict says so, and is surer than by its ranks alone."""
    ranks = [*gone_from("n1", 0, 1), waiting(2, node="n2"), waiting(3, node="n2")]
    looks = [capture(t, *ranks) for t in (1000.0, 1005.0)]
    exits = [RankExit(n, "n1", 999.0) for n in (0, 1)]
    found = judge(evidence(*looks, exits=exits, signals=[signal(SignalKind.NODE_DOWN, "n1", "down: no answer")]))
    assert named(found) == [("n1", (0, 1))]
    assert "down: no answer" in found.reason
    assert found.suspects[0].confidence > 0.9


def test_ranks_that_finish_first_are_not_blamed() -> None:
    """All ranks of n1 are gone, and the others work on: not acted on."""
    busy = [[rank(n, process(USER, cpu_s=5.0 * t), node="n2") for n in (2, 3)] for t in range(2)]
    looks = [capture(1000.0 + 5 * t, *gone_from("n1", 0, 1), *others) for t, others in enumerate(busy)]
    assert not judge(evidence(*looks)).corroborated


def test_most_nodes_lost_their_ranks() -> None:
    """Two of three nodes: the job ends, or something that they share."""
    ranks = [*gone_from("n1", 0, 1), *gone_from("n2", 2, 3), waiting(4, node="n3"), waiting(5, node="n3")]
    assert not any(s.infrastructure for s in judge(repeated(*ranks)).suspects)
