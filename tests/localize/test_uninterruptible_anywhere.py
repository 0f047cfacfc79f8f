"""D state is named wherever the rank stands, and costs its node only outside of saves, imports and checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import ALL_REDUCE, IMPORT, MAIN, SAVE, USER, frames, in_loader, process, rank, repeated, waiting
from recorder_dumps import WORLD, dump, entry

from slurm_robust.core.model import Conclusion, Grade
from slurm_robust.localize.evidence import Evidence, RankCapture, StackFrame
from slurm_robust.localize.judge import judge


def stuck(number: int, stack: tuple[object, ...] = SAVE, phase: str = "train") -> RankCapture:
    """A rank that waits in the kernel."""
    return rank(number, process(stack, state="D", wchan="nfs_wait_bit_killable"), phase=phase)  # type: ignore[arg-type]


def scene(*ranks: RankCapture, over_s: float = 130.0) -> Evidence:
    """These, with the others of six in a collective, in four captures."""
    others = [waiting(n) for n in range(6) if n not in {r.rank for r in ranks}]
    return repeated(*others, *ranks, times=4, every_s=over_s / 3)


def inner(function: str, file: str = "/home/u/train.py") -> tuple[StackFrame, ...]:
    """The training in this function."""
    return frames(*MAIN, f"{function} {file}:90")


def writes_beside() -> RankCapture:
    """A rank whose child writes a checkpoint, and waits in the kernel."""
    child = process(inner("write_shard"), pid=101, state="D", wchan="folio_wait_writeback")
    return rank(2, process(inner("train_step")), child)


@pytest.mark.parametrize("suspect", [stuck(2, USER), stuck(2, inner("train_step"))], ids=["program", "step"])
def test_its_node_is_named_the_first_time(suspect: RankCapture) -> None:
    """Strong, of infrastructure, and sure after seconds in which nothing moved."""
    found = judge(scene(suspect))
    assert [(s.node, s.infrastructure) for s in found.suspects] == [("n2", True)]
    assert found.suspects[0].confidence == 0.9
    assert found.grade is Grade.STRONG
    assert found.corroborated


@pytest.mark.parametrize(
    "suspect",
    [
        stuck(2),
        stuck(2, IMPORT),
        stuck(2, ALL_REDUCE[:2], "checkpoint"),
        stuck(2, inner("save")),
        stuck(2, inner("Store.fsync_all")),
        stuck(2, inner("save_checkpoint")),
        stuck(2, inner("load_weights")),
        writes_beside(),
    ],
    ids=["torch.save", "import", "announced", "save", "fsync", "checkpoint", "load", "child writes"],
)
def test_slow_storage_costs_no_node(suspect: RankCapture) -> None:
    """A healthy file system that takes minutes looks the same: named with its reason, weak, and nothing more."""
    found = judge(scene(suspect))
    assert [(s.node, s.infrastructure) for s in found.suspects] == [("n2", False)]
    assert "uninterruptible (D)" in found.suspects[0].why
    assert found.suspects[0].confidence == 0.9
    assert found.grade is Grade.WEAK
    assert found.corroborated


def test_a_loader_that_hangs_in_the_kernel_is_strong() -> None:
    """A read of training data takes no minutes."""
    worker = process(frames(*MAIN, "read_shard /home/u/data.py:3"), state="D", wchan="nfs_wait_bit_killable")
    found = judge(scene(in_loader(2, worker)))
    assert (found.grade, found.suspects[0].infrastructure) == (Grade.STRONG, True)


@pytest.mark.parametrize("stack", [SAVE, IMPORT], ids=["save", "import"])
def test_a_slow_write_is_given_its_time(stack: tuple[object, ...]) -> None:
    """One write of a large file to slow storage may take a minute in which no byte is counted."""
    assert not judge(scene(stuck(2, stack), over_s=60.0)).corroborated


def test_most_nodes_show_it() -> None:
    """What most nodes wait for is storage that they share: no node."""
    found = judge(scene(*(stuck(n) for n in range(4))))
    assert found.conclusion is Conclusion.UNDETERMINED
    assert not found.suspects


@pytest.mark.parametrize(("over_s", "corroborated"), [(60.0, False), (130.0, True)])
def test_the_recorder_says_the_same(over_s: float, corroborated: bool) -> None:
    """It never joined because it saves; that it saves is no excuse once it hangs in the kernel for two minutes."""
    six = {WORLD: list(range(6))}
    dumps = {r: dump(r, [entry(10, 5)], {0: (5, 4)}, six) for r in range(6)}
    dumps[2] = dump(2, [entry(9, 4, state="completed")], {0: (4, 4)}, six)
    found = judge(replace(scene(stuck(2), over_s=over_s), recorder=dumps, recorder_before=dumps))
    assert [s.node for s in found.suspects] == ["n2"]
    assert (found.grade, found.suspects[0].infrastructure) == (Grade.WEAK, False)
    assert found.corroborated is corroborated
