"""A job of one rank: nobody waits for it, so that it is only restarted for what the kernel shows of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import ALL_REDUCE, SAVE, USER, process, rank, repeated, waiting

from slurm_robust.core.model import Conclusion, Grade
from slurm_robust.localize.dead_mounts import DeadMount
from slurm_robust.localize.evidence import Evidence, RankCapture, StackFrame
from slurm_robust.localize.judge import judge


def in_the_kernel(stack: tuple[StackFrame, ...] = USER, bytes_: int = 1000) -> RankCapture:
    """It waits in D state."""
    return rank(0, process(stack, state="D", wchan="nfs_wait_bit_killable", io_bytes=bytes_))


def over(*ranks: RankCapture, seconds: float, times: int = 4) -> Evidence:
    """So many captures in this time."""
    return repeated(*ranks, times=times, every_s=seconds / (times - 1))


@pytest.mark.parametrize("stack", [USER, SAVE], ids=["program", "save"])
def test_d_state_is_named_and_costs_no_node(stack: tuple[StackFrame, ...]) -> None:
    """Weak evidence once it has lasted for two minutes: slow storage looks the same. Before, what is awaited."""
    early, late = (judge(over(in_the_kernel(stack), seconds=s)) for s in (30.0, 130.0))
    for found in (early, late):
        assert (
            "rank 0 on n0 is alone, and its process 100 is uninterruptible (D), waiting in the kernel's nfs"
            in found.reason
        )
        assert (found.conclusion, found.grade) == (Conclusion.CULPRIT, Grade.WEAK)
        assert [(s.node, s.ranks, s.infrastructure) for s in found.suspects] == [("n0", (0,), False)]
    assert not early.corroborated
    assert early.missing == ("3 unmoved captures over 120 s (so far 4 over 30 s)",)
    assert late.corroborated


def test_one_that_moves_data_is_at_work() -> None:
    """It reads or writes through a slow file system, in D state at each capture."""
    scene = repeated(in_the_kernel(), times=1)
    captures = [
        replace(scene.captures[0], at_s=1000.0 + 40 * n, ranks=(in_the_kernel(bytes_=10_000_000 * n),))
        for n in range(5)
    ]
    found = judge(replace(scene, captures=tuple(captures)))
    assert (found.corroborated, found.suspects) == (False, ())


def test_a_mount_that_only_its_node_cannot_reach_is_certain() -> None:
    """The other nodes of the job's allocation were asked."""
    scene = over(in_the_kernel(), seconds=130.0)
    found = judge(replace(scene, dead_mounts=(DeadMount("/data", "n0", ("n1", "n2")),)))
    assert (found.grade, found.suspects[0].infrastructure) == (Grade.CERTAIN, True)


def test_a_rank_that_only_stands_names_nobody() -> None:
    """Nothing but time tells work from a hang; and the words do not speak of others."""
    found = judge(over(rank(0, process(USER)), seconds=600.0))
    assert (found.conclusion, found.corroborated) == (Conclusion.UNDETERMINED, False)
    assert found.reason.startswith("the only rank stands at ")
    assert "all ranks" not in found.reason


def test_others_are_judged_as_before() -> None:
    """With peers, or with ranks that are not captured, a rank is not alone."""
    assert "alone" not in judge(over(in_the_kernel(), waiting(1), seconds=130.0)).reason
    unseen = replace(over(in_the_kernel(), seconds=130.0), world_size=2)
    assert judge(unseen).suspects == ()
    alone_in_a_collective = judge(over(rank(0, process(ALL_REDUCE)), seconds=130.0))
    assert alone_in_a_collective.grade is Grade.STRONG  # nobody works, as it was
