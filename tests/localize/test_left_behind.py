"""What the recorders ask of a link: one member left behind, groups inside groups, and a rank that computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from localize_scenes import ALL_REDUCE, EVALUATE, MAIN, USER, capture, evidence, frames, process, rank, signal, waiting
from recorder_dumps import WORLD, dump, entry

from slurm_robust.core.model import Conclusion, Grade, SignalKind
from slurm_robust.localize.apart import standing_apart
from slurm_robust.localize.evidence import Evidence, RankCapture
from slurm_robust.localize.judge import judge
from slurm_robust.localize.ras import CommunicatorMember, RasView
from slurm_robust.localize.recorder.dump import RankDump
from slurm_robust.localize.votes.flight_recorder import judge_dumps

FOUR = {WORLD: [0, 1, 2, 3]}


def left_behind() -> dict[int, RankDump]:
    """Three of four have completed a reduction that all have enqueued."""
    return {**{r: dump(r, [], {0: (5, 5)}, FOUR) for r in (0, 1, 2)}, 3: dump(3, [entry(10, 5)], {0: (5, 4)}, FOUR)}


def seen(*ranks: RankCapture, recorder: Mapping[int, RankDump], times: int = 2) -> Evidence:
    """Captured five seconds apart, with dumps in which nothing moved."""
    found = evidence(*(capture(1000.0 + 5 * n, *ranks) for n in range(times)))
    return replace(found, recorder=recorder, recorder_before=recorder)


def all_wait() -> list[RankCapture]:
    """Four ranks in one collective, each a process of its own."""
    return [rank(n, process(ALL_REDUCE, 100 + n)) for n in range(4)]


def test_one_member_left_behind_is_a_question_about_a_link() -> None:
    """Named as where to look, and nothing is said about its node."""
    found = judge(seen(*all_wait(), recorder=left_behind()))
    (suspect,) = found.suspects
    assert suspect.node == "n3"
    assert suspect.confidence == 0.6
    assert not suspect.infrastructure
    assert found.grade is Grade.WEAK


def test_that_nobody_works_is_sure_all_the_same() -> None:
    """Over ten seconds nothing moves: the hang is sure, and acted on soon; who it is stays a question."""
    found = judge(seen(*all_wait(), recorder=left_behind(), times=3))
    assert found.grade is Grade.STRONG
    assert found.corroborated
    assert not any(s.infrastructure for s in found.suspects)


def test_its_own_node_reports_a_fault() -> None:
    """Two views of one node: it is the node."""
    given = replace(
        seen(*all_wait(), recorder=left_behind()), node_signals=(signal(SignalKind.NODE_FAULT, "n3", "mlx5_0: down"),)
    )
    found = judge(given)
    assert [(s.node, s.infrastructure) for s in found.suspects] == [("n3", True)]
    assert found.grade is Grade.STRONG


def test_another_node_reports_a_fault() -> None:
    """A broken link of one node leaves another behind: the one that reports it is named."""
    given = replace(
        seen(*all_wait(), recorder=left_behind()), node_signals=(signal(SignalKind.NODE_FAULT, "n1", "mlx5_0: down"),)
    )
    assert [(s.node, s.infrastructure) for s in judge(given).suspects] == [("n1", True)]


@pytest.mark.parametrize(("silent", "node"), [(3, "n3"), (1, "n1")], ids=["the same", "another"])
def test_nccl_knows_more(silent: int, node: str) -> None:
    """A process that NCCL cannot reach twice: where both agree it is the node, and else NCCL's word counts."""
    gone = ((CommunicatorMember(silent, f"10.0.0.{silent}", 100 + silent), 4, False),)
    views = (RasView(1000.0, gone, ()), RasView(1005.0, gone, ()))
    found = judge(replace(seen(*all_wait(), recorder=left_behind()), ras=views))
    assert [(s.node, s.infrastructure) for s in found.suspects] == [(node, True)]


# -- a rank that computes -------------------------------------------------------------------------------------------


def absent(number: int = 1) -> dict[int, RankDump]:
    """All of four wait in a collective that one never joined."""
    found = {r: dump(r, [entry(10, 5)], {0: (5, 4)}, FOUR) for r in range(4)}
    return {**found, number: dump(number, [entry(9, 4, state="completed")], {0: (4, 4)}, FOUR)}


@pytest.mark.parametrize("cpu_a_s", [1.0, 0.0], ids=["computes", "waits for its device"])
def test_a_rank_that_is_in_code_of_its_own_is_not_blamed_as_infrastructure(cpu_a_s: float) -> None:
    """By the recorder it never joined; it may evaluate in a function that no name betrays."""
    score = frames(*MAIN, "score /home/u/train.py:40", "relu torch/nn/functional.py:9")
    looks = [
        capture(1000.0 + t, *(waiting(n) for n in (0, 2, 3)), rank(1, process(score, cpu_s=100 + t * cpu_a_s)))
        for t in (0.0, 5.0, 10.0)
    ]
    found = judge(replace(evidence(*looks), recorder=absent(), recorder_before=absent()))
    assert [s.node for s in found.suspects] == ["n1"]
    assert not found.suspects[0].infrastructure
    assert found.grade is Grade.WEAK


@pytest.mark.parametrize("cpu_a_s", [1.0, 0.0], ids=["computes", "stands still"])
def test_a_rank_in_an_evaluation_is_not_blamed(cpu_a_s: float) -> None:
    """It is at work where work takes long, whatever the recorder says."""
    looks = [
        capture(1000.0 + t, *(waiting(n) for n in (0, 2, 3)), rank(1, process(EVALUATE, cpu_s=100 + t * cpu_a_s)))
        for t in (0.0, 5.0, 10.0)
    ]
    found = judge(replace(evidence(*looks), recorder=absent(), recorder_before=absent()))
    assert not any(s.infrastructure for s in found.suspects)
    assert not found.corroborated


def test_a_rank_that_stands_in_the_collective_is_strong() -> None:
    """Its stack says that it waits, too, and its recorder that it never came there: not in code of its own."""
    found = judge(seen(*(waiting(n) for n in range(4)), recorder=absent()))
    assert found.grade is Grade.STRONG
    assert found.suspects[0].infrastructure


# -- groups inside groups -------------------------------------------------------------------------------------------

SHARDS, REPLICAS = {"s0": [0, 1], "s1": [2, 3]}, {"r0": [0, 2], "r1": [1, 3]}
NODES = {r: f"n{r}" for r in range(4)}


def hybrid(pending: Mapping[int, Sequence[str]], state: str = "scheduled") -> list[RankDump]:
    """Each rank's open operations, by group and in order: shards inside two replicas."""
    dumps = []
    for number in range(4):
        mine = {name: ranks for name, ranks in {**SHARDS, **REPLICAS}.items() if number in ranks}
        entries = [
            entry(10 + at, 5, group=name, number=int(name[0] == "r"), state=state)
            for at, name in enumerate(pending[number])
        ]
        counters = {int(name[0] == "r"): (5, 4) if name in pending[number] else (4, 4) for name in mine}
        # A group without an open operation shows which number it has by its last entry.
        closed = [
            entry(3, 4, group=n, number=int(n[0] == "r"), state="completed") for n in mine if n not in pending[number]
        ]
        dumps.append(dump(number, [*closed, *entries], counters, mine))
    return dumps


def test_where_the_waiting_ends_is_told_and_tested_first() -> None:
    """Shard group 0-1 is stuck; the other shard's ranks wait for it in both replicas: the tests begin at its nodes."""
    dumps = hybrid({0: ["s0", "r0"], 1: ["s0", "r1"], 2: ["r0"], 3: ["r1"]})
    found = judge_dumps(dumps, NODES)
    assert found is not None
    assert found.conclusion is Conclusion.UNDETERMINED
    assert "for n0, n1" in found.detail
    assert any("pairwise tests of n0, n1" in what for what in found.missing)
    given = seen(*(waiting(n) for n in range(4)), recorder={d.rank: d for d in dumps})
    assert standing_apart(given, judge(given)).nodes == ("n0", "n1")


def test_operations_that_have_begun_beside_each_other_share_one_node() -> None:
    """A shard's and a replica's operation are both running on all their devices: only node 1 is in both."""
    dumps = hybrid({0: ["s0"], 1: ["r1", "s0"], 2: [], 3: ["r1"]}, "started")
    found = judge_dumps(dumps, NODES)
    assert found is not None
    assert [s.node for s in found.suspects] == ["n1"]


def test_operations_that_wait_behind_each_other_name_nobody() -> None:
    """The same, where the second has not begun: one device runs one after the other, and any of two may be at fault."""
    found = judge_dumps(hybrid({0: ["s0"], 1: ["r1", "s0"], 2: [], 3: ["r1"]}), NODES)
    assert found is not None
    assert not found.suspects


def test_a_circle_through_groups_ends_nowhere() -> None:
    """Each waits for the other in another order: the program's, and no node is tested before others."""
    dumps = hybrid({0: ["s0", "r0"], 1: ["r1", "s0"], 2: ["r0", "s1"], 3: ["s1", "r1"]})
    given = seen(*(rank(n, process(USER)) for n in range(4)), recorder={d.rank: d for d in dumps})
    assert standing_apart(given, judge(given)).nodes == ()
