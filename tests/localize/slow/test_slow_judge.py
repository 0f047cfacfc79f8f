"""Who is slow, and who only looks like it: each rule where it is right, and where without it the answer is wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from slow_tables import table

from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.localize.slow.judge import judge_timings

DP16 = {"dp": 16}
PIPELINE = {"tp": 2, "pp": 4, "dp": 4}


def nodes(verdict: Verdict) -> list[str]:
    """Who is named."""
    return [s.node for s in verdict.suspects]


def test_five_per_cent_of_one_rank_are_found() -> None:
    """BLOOM's slow GPU: its node, its rank, how much, in how many steps, what it costs."""
    found = judge_timings(table(16, 50, lambda r, s: 1.05 if r == 9 else 1.0), DP16)
    assert found.conclusion is Conclusion.CULPRIT
    (suspect,) = found.suspects
    assert (suspect.node, suspect.ranks) == ("n2", (9,))
    assert suspect.why.startswith("rank 9 on n2 computes")
    assert "of 50 steps" in suspect.why
    assert "loses about" in found.detail


def test_a_whole_node_is_told_as_one() -> None:
    """All ranks of a node: the sentence speaks of the node, and no other is named."""
    found = judge_timings(table(32, 50, lambda r, s: 1.04 if r // 4 == 3 else 1.0, noise=0.02), {"dp": 32})
    assert nodes(found) == ["n3"]
    assert found.suspects[0].ranks == (12, 13, 14, 15)
    assert "node n3: its 4 ranks compute" in found.reason


def test_a_healthy_job_names_nobody() -> None:
    """GPUs differ by half a per cent and jitter by two: no machine is slow."""
    apart = [random.Random(5).gauss(1, 0.005) for _ in range(64)]
    found = judge_timings(table(64, 60, lambda r, s: apart[r], noise=0.02), {"dp": 64})
    assert found.conclusion is Conclusion.NONE, found.reason
    assert not found.suspects


def test_sequence_lengths_name_nobody() -> None:
    """Another replica has the long sequences each step: the imbalance moves."""
    rng = random.Random(2)
    lengths = [[rng.lognormvariate(0, 0.3) for _ in range(16)] for _ in range(60)]
    found = judge_timings(table(16, 60, lambda r, s: lengths[s][r]), DP16)
    assert found.conclusion is Conclusion.NONE
    assert "moves" in found.reason


def test_a_slow_rank_is_found_among_moving_sequences_by_its_twins() -> None:
    """Its tensor group has the same data: eight per cent stand out where replicas differ by thirty."""
    rng = random.Random(3)
    lengths = [[rng.lognormvariate(0, 0.3) for _ in range(4)] for _ in range(80)]
    timings = table(16, 80, lambda r, s: lengths[s][r // 4] * (1.08 if r == 6 else 1.0))
    found = judge_timings(timings, {"tp": 4, "dp": 4})
    assert nodes(found) == ["n1"]
    assert found.suspects[0].ranks == (6,)
    assert "with the same data" in found.reason


def test_the_last_stage_is_the_programs() -> None:
    """Loss and vocabulary: every rank of the last stage takes a third longer, on its own nodes."""
    timings = table(32, 50, lambda r, s: 1.3 if r // 8 == 3 else 1.0)
    found = judge_timings(timings, PIPELINE)
    assert found.conclusion is Conclusion.NONE
    assert "stage 3 (the last" in found.reason
    assert judge_timings(timings, {}).conclusion is not Conclusion.CULPRIT, "without a layout nobody knows"


def test_a_slow_machine_in_the_last_stage_is_found() -> None:
    """It is slower than the others of its stage."""
    found = judge_timings(
        table(32, 50, lambda r, s: (1.3 if r // 8 == 3 else 1.0) * (1.06 if r == 27 else 1)), PIPELINE
    )
    assert [(s.node, s.ranks) for s in found.suspects] == [("n6", (27,))]
    assert "3 peers of stage 3" in found.reason


def test_a_replica_with_more_data_is_no_machine() -> None:
    """All stages of one replica, on many nodes, are slow alike: its shard is heavier."""
    # Two ranks of each replica on a node; a replica is on four nodes.
    found = judge_timings(table(32, 50, lambda r, s: 1.15 if r // 2 % 4 == 2 else 1.0, per_node=2), PIPELINE)
    assert found.conclusion is Conclusion.NONE
    assert "share of the data" in found.reason


def test_a_place_that_always_has_more_to_do_is_the_programs() -> None:
    """The first rank of each tensor group reads the data: no machine is slow."""
    rng = random.Random(4)
    lengths = [[rng.lognormvariate(0, 0.2) for _ in range(8)] for _ in range(50)]
    timings = table(32, 50, lambda r, s: lengths[s][r // 4] * (1.07 if r % 4 == 0 else 1.0))
    found = judge_timings(timings, {"tp": 4, "dp": 8})
    assert found.conclusion is Conclusion.NONE, found.reason


def test_slowness_that_began_is_dated() -> None:
    """Slow since step 35 of 60: found, and the step is told, give or take two."""
    found = judge_timings(table(16, 60, lambda r, s: 1.1 if r == 5 and s >= 35 else 1.0), DP16)
    assert nodes(found) == ["n1"]
    told = int(found.reason.rpartition("since step ")[2])
    assert 33 <= told <= 37


def test_heat_now_and_then_is_found() -> None:
    """A third of the steps, in bunches, a fifth slower."""
    found = judge_timings(table(16, 90, lambda r, s: 1.2 if r == 11 and s // 6 % 3 == 0 else 1.0, noise=0.01), DP16)
    assert nodes(found) == ["n2"]
    assert "hardly ever" in found.reason
    assert found.suspects[0].confidence < 0.9


def test_garbage_collection_names_nobody() -> None:
    """Every rank pauses in one step of ten, each at its own time."""
    rng = random.Random(6)
    pauses = {(r, s) for r in range(32) for s in range(60) if rng.random() < 0.1}
    found = judge_timings(table(32, 60, lambda r, s: 1.5 if (r, s) in pauses else 1.0), {"dp": 32})
    assert found.conclusion is Conclusion.NONE, found.reason


def test_checkpoints_and_warm_up_name_nobody() -> None:
    """Compilation in the first steps, and rank 0 that writes a checkpoint every tenth."""

    def work(rank: int, step: int) -> float:
        if step < 2:
            return 5.0 + rank % 5
        return 3.0 if step % 10 == 0 and rank == 0 else 1.0

    found = judge_timings(table(16, 60, work), DP16)
    assert found.conclusion is Conclusion.NONE, found.reason


def test_rank_zero_has_work_of_its_own() -> None:
    """It may log: named at half confidence, and nothing is said of its node."""
    (suspect,) = judge_timings(table(16, 50, lambda r, s: 1.1 if r == 0 else 1.0), DP16).suspects
    assert suspect.confidence <= 0.5
    assert not suspect.infrastructure


def test_rank_zero_has_no_excuse_for_large_and_steady_excess() -> None:
    """136 % in every step is no logging: its node is at fault, as any other rank's would be."""
    (suspect,) = judge_timings(table(16, 44, lambda r, s: 2.36 if r == 0 else 1.0), DP16).suspects
    assert (suspect.node, suspect.ranks) == ("n0", (0,))
    assert "44 of 44 steps" in suspect.why
    assert suspect.infrastructure
    assert suspect.confidence > 0.8


def test_rank_zero_may_save_now_and_then() -> None:
    """Twice the time in a third of the steps, in bunches: work of its own, and nothing is said of its node."""
    found = judge_timings(table(16, 90, lambda r, s: 2.0 if r == 0 and s // 6 % 3 == 0 else 1.0, noise=0.01), DP16)
    assert all(not s.infrastructure and s.confidence <= 0.5 for s in found.suspects)


def test_totals_in_lockstep_are_undetermined() -> None:
    """All wait for the slowest: every total is the same, and the verdict says what is missing."""
    timings = table(16, 50, lambda r, s: 1.2 if r == 3 else 1.0)
    gaps = tuple(type(row)("d", [float("nan")] * len(row)) for row in timings.compute)
    found = judge_timings(replace(timings, compute=gaps, communication=gaps), DP16)
    assert found.conclusion is Conclusion.UNDETERMINED
    assert any("compute_s" in what for what in found.missing)


def test_totals_apart_are_taken_for_work() -> None:
    """Ranks that end their steps one after another do not wait for each other inside them."""
    timings = table(16, 50, lambda r, s: 1.2 if r == 3 else 1.0)
    found = judge_timings(replace(timings, total=timings.compute, compute=timings.total[:0]), DP16)
    assert nodes(found) == ["n0"]
    assert any("totals" in what for what in found.missing)


def test_a_tensor_group_over_two_nodes_is_named_with_little_confidence() -> None:
    """Where compute holds the waiting inside the group, one of its nodes is at fault and nobody knows which."""
    found = judge_timings(
        table(32, 50, lambda r, s: 1.1 if r // 4 == 2 else 1.0, per_node=2), {"tp": 4, "pp": 2, "dp": 4}
    )
    assert nodes(found) == ["n4", "n5"]
    assert all(s.confidence <= 0.4 for s in found.suspects)


@pytest.mark.parametrize(("ranks", "steps"), [(1, 50), (16, 5)])
def test_too_little_is_said(ranks: int, steps: int) -> None:
    """One rank, or five steps: undetermined, with what is needed."""
    found = judge_timings(table(ranks, steps))
    assert found.conclusion is Conclusion.UNDETERMINED
    assert "too little" in found.reason


def test_a_layout_that_does_not_fit_is_said() -> None:
    """It is not used, and stands under missing."""
    found = judge_timings(table(16, 50, lambda r, s: 1.1 if r == 5 else 1.0), {"tp": 3})
    assert nodes(found) == ["n1"]
    assert any("tp=3" in what for what in found.missing)
    assert found.suspects[0].confidence <= 0.6


def test_ranks_without_timings_are_said() -> None:
    """Two of sixteen told nothing: the others are judged."""
    timings = table(14, 50, lambda r, s: 1.1 if r == 5 else 1.0)
    found = judge_timings(timings, DP16, world_size=16)
    assert nodes(found) == ["n1"]
    assert any("ranks 14-15" in what for what in found.missing)


def test_an_expert_of_its_own_has_no_peer() -> None:
    """Every rank holds another expert: a hot expert and a slow machine look alike."""
    found = judge_timings(table(8, 50, lambda r, s: 1.3 if r == 3 else 1.0), {"dp": 8, "ep": 8})
    assert found.conclusion is Conclusion.UNDETERMINED
    assert "no rank has a peer" in found.reason


def test_many_slow_ranks_are_no_exception() -> None:
    """A third of the ranks: it is a class of hardware or work, and nobody is named."""
    found = judge_timings(table(30, 50, lambda r, s: 1.2 if r % 3 == 0 else 1.0, per_node=1), {"dp": 30})
    assert found.conclusion is not Conclusion.CULPRIT
