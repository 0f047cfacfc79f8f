"""Ranks that have no process while all others wait for them in the start-up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from localize_scenes import ALL_REDUCE, IMPORT, USER, capture, evidence, frames, process, rank, signal

from slurm_robust.core.model import Conclusion, Grade, SignalKind
from slurm_robust.localize.evidence import Evidence, RankExit, StackFrame
from slurm_robust.localize.judge import judge

RENDEZVOUS = frames(
    "main /home/u/train.py:9",
    "init_process_group torch/distributed/distributed_c10d.py:1764",
    "_create_c10d_store torch/distributed/rendezvous.py:190",
)
FOUR = {n: f"n{n}" for n in range(4)}


def starting(
    stack: tuple[StackFrame, ...] = RENDEZVOUS,
    *,
    present: Iterable[int] = range(3),
    over_s: float = 130.0,
    step: int | None = None,
    missing: Iterable[str] = (),
) -> Evidence:
    """Ranks of a job of four that wait, unmoved, in the start-up."""
    ranks = [rank(n, process(stack), step=step) for n in present]
    looks = (capture(1000.0 + over_s * n / 4, *ranks, missing=missing) for n in range(5))
    return replace(evidence(*looks, nodes=FOUR), world_size=4)


@pytest.mark.parametrize(
    "given", [starting(), starting(ALL_REDUCE, step=-1)], ids=["rendezvous", "the first collective"]
)
def test_the_rank_that_has_no_process_is_waited_for(given: Evidence) -> None:
    """Named as what it is, weakly: a container that comes up slowly looks the same."""
    found = judge(given)
    assert [(s.node, s.ranks) for s in found.suspects] == [("n3", (3,))]
    assert "rank 3 on n3 has no process and never had one" in found.reason
    assert not found.suspects[0].infrastructure
    assert found.grade is Grade.WEAK
    assert found.corroborated


def test_it_is_relied_on_after_two_minutes_only() -> None:
    """Named early, and not yet sure."""
    found = judge(starting(over_s=20.0))
    assert [s.node for s in found.suspects] == ["n3"]
    assert not found.corroborated


def test_a_job_that_reports_no_steps_may_be_past_its_start() -> None:
    """In a plain collective nothing says that it is the first: never sure."""
    found = judge(starting(ALL_REDUCE))
    assert found.grade is Grade.WEAK
    assert not found.corroborated


def test_a_node_that_nobody_has_told_of() -> None:
    """Agents know only nodes with processes: the rank is named, and its node where its neighbours show it."""
    unknown = replace(starting(), rank_nodes={n: f"n{n}" for n in range(3)})
    assert [(s.node, s.ranks) for s in judge(unknown).suspects] == [("", (3,))]
    between = replace(starting(present=(0, 1, 3)), rank_nodes={0: "n0", 1: "n1", 3: "n1"})
    assert [(s.node, s.ranks) for s in judge(between).suspects] == [("n1", (2,))]


def test_slurm_knows_more() -> None:
    """Slurm calls the node down: certain, and of infrastructure."""
    found = judge(replace(starting(), node_signals=(signal(SignalKind.NODE_DOWN, "n3", "DOWN"),)))
    assert [s.node for s in found.suspects] == ["n3"]
    assert found.suspects[0].infrastructure
    assert found.grade is Grade.CERTAIN


@pytest.mark.parametrize(
    "given",
    [
        starting(ALL_REDUCE, step=20),
        starting(IMPORT),
        starting(USER),
        starting(present=(0,)),
        starting(over_s=2.0),
        replace(starting(), exits=(RankExit(3, "n3", 999.0, 0),)),
        starting(missing=["n2"]),
    ],
    ids=["after its start", "importing", "in the program", "most are absent", "for a moment", "ended", "a silent node"],
)
def test_who_is_not_named_for_that(given: Evidence) -> None:
    """Others do not wait for it, or it is known what became of it."""
    found = judge(given)
    assert "never had one" not in found.reason


def test_a_start_that_moves() -> None:
    """One of those that wait is still at work."""
    given = starting()
    busy = [
        replace(c, ranks=(*c.ranks[:-1], rank(2, process(IMPORT, cpu_s=c.at_s), step=None))) for c in given.captures
    ]
    found = judge(replace(given, captures=tuple(busy)))
    assert found.conclusion is not Conclusion.CULPRIT
