"""Votes of repeated captures: who the others wait for in most rounds, and who is only looked at in a pause."""

from __future__ import annotations

from localize_scenes import BARRIER, EVALUATE, USER, capture, process, rank, waiting

from slurm_robust.core.model import Conclusion
from slurm_robust.localize.evidence import Capture, Evidence
from slurm_robust.localize.slow.rounds import judge_repeated, judge_rounds

NODES = {number: f"n{number // 2}" for number in range(8)}


def one_round(index: int, outside: set[int], *, step: int | None = None, still: bool = False) -> Capture:
    """Eight ranks ten seconds later: those outside compute, the others wait."""
    told = 20 + index if step is None else step
    return capture(
        100.0 + 10 * index,
        *(
            rank(r, process(USER if r in outside else BARRIER, 100 + r), node=NODES[r], step=None if still else told)
            for r in range(8)
        ),
    )


def seen(*outside: set[int], **more: object) -> Evidence:
    """Evidence of these rounds."""
    rounds = tuple(one_round(i, out, **more) for i, out in enumerate(outside))  # type: ignore[arg-type]
    return Evidence(8, NODES, rounds, layout={"tp": 2, "dp": 4})


def test_who_is_waited_for_in_most_rounds_is_named() -> None:
    """Rank 5 in four of five; in one everybody computes, which is no vote."""
    found = judge_repeated(seen({5}, {5}, set(range(8)), {5}, {5}))
    assert found.conclusion is Conclusion.CULPRIT
    assert [(s.node, s.ranks) for s in found.suspects] == [("n2", (5,))]
    assert "in 4 of 5 rounds" in found.reason
    assert not found.corroborated, "nothing is ever done for it"
    assert found.suspects[0].confidence <= 0.6


def test_another_rank_each_round_is_nobody() -> None:
    """The imbalance moves, as with sequence lengths: `judge` says that training moves."""
    assert judge_rounds(seen({1}, {3}, {5}, {7}, {2})) is None
    assert judge_repeated(seen({1}, {3}, {5}, {7}, {2})).conclusion is Conclusion.NONE


def test_a_group_that_is_outside_each_round_by_another_member() -> None:
    """No node has most rounds; the data group of all of them does, with little confidence for each."""
    rounds = seen({0, 2}, {0, 4}, {2, 6}, {4, 6}, {0, 6}).captures
    found = judge_rounds(Evidence(8, NODES, rounds, layout={"tp": 2, "pp": 1, "dp": 4}))
    assert found is not None
    assert [s.node for s in found.suspects] == ["n0", "n1", "n2", "n3"]
    assert all(s.confidence == 0.1 for s in found.suspects)
    assert "data group of ranks 0,2,4,6" in found.reason


def test_one_long_pause_is_one_round() -> None:
    """Rank 0 evaluates through five rounds of one step: no vote, whatever the captures show."""
    rounds = tuple(
        capture(
            100.0 + 10 * i,
            rank(0, process(EVALUATE, 100), node="n0", step=20, phase="evaluate"),
            *(waiting(r, node=NODES[r]) for r in range(1, 8)),
        )
        for i in range(5)
    )
    assert judge_rounds(Evidence(8, NODES, rounds)) is None


def test_without_progress_a_waiting_rank_must_go_on() -> None:
    """Nobody tells a step, and the same ranks stand at the same barrier: that may be one pause."""
    assert judge_rounds(seen({5}, {5}, {5}, {5}, {5}, still=True)) is None


def test_two_rounds_are_too_few() -> None:
    """A pause looks the same."""
    assert judge_rounds(seen({5}, {5})) is None
