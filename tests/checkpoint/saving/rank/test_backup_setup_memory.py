"""As many backups as were asked for, as nodes are there and as memory allows; and what is not kept takes no memory."""

from __future__ import annotations

import re

import pytest
from saving_nodes import NO_DISK, RANKS, Nodes
from worlds_server import in_worlds

from slurm_robust.checkpoint.saving.persister.backup_service import BackupService
from slurm_robust.checkpoint.saving.rank import backup_setup
from slurm_robust.checkpoint.saving.shared import memory_budget
from slurm_robust.checkpoint.saving.shared.options import BackupOptions
from slurm_robust.supervise.agent import persisters


@pytest.mark.parametrize(
    ("asked", "nodes", "by_agent", "found", "why"),
    [
        (None, 1, True, 0, ""),
        (None, 2, True, 1, ""),
        (None, 3, True, 2, ""),
        (None, 3, False, 0, ""),  # Slurm ends those persisters with the step
        (0, 3, True, 0, ""),
        (1, 1, False, 0, "no backup is kept: all ranks are on one node"),
        (1, 2, True, 1, ""),
        (1, 9, True, 1, ""),
        (2, 1, True, 0, "no backup is kept: all ranks are on one node"),
        (2, 2, False, 1, "one backup of each rank is kept, not two: there are two nodes"),
        (2, 3, False, 2, ""),
    ],
)
def test_as_many_as_there_are_other_nodes(asked: int | None, nodes: int, by_agent: bool, found: int, why: str) -> None:
    """By itself only where the agents keep the memory; what was asked for and cannot be is told."""
    ranks = [backup_setup.RankNode(f"node {rank % nodes}", "n", by_agent) for rank in range(2 * nodes)]
    options = BackupOptions(copies=asked)
    assert backup_setup.wanted(ranks, options) == (found, why)
    placed = backup_setup.backups(ranks, options, {"ranks": 2 * nodes}, found)
    assert [len(others) for others in placed] == [found] * (2 * nodes if found else 0)


def test_no_other_number_is_taken() -> None:
    """Three, or a word, is told at once."""
    assert [BackupOptions(copies=backups).copies for backups in (None, 0, 1, 2)] == [None, 0, 1, 2]
    for wrong in (3, -1, "two"):
        with pytest.raises(ValueError, match="0, 1 or 2 of each rank"):
            BackupOptions(copies=wrong)  # type: ignore[arg-type]


def test_what_is_there_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two is asked for as what is missing; a backup of another size gives its memory back first."""
    asked: list[int] = []
    monkeypatch.setattr(memory_budget, "refusal", lambda needed, *_: asked.append(needed) or "")
    service = BackupService(None, {})  # type: ignore[arg-type]
    assert service._reserve(("/d", 1), 5 << 20) == service._reserve(("/d", 2), 5 << 20) == ""
    asked.clear()
    assert service._check_fit({("/d", 1): 5 << 20, ("/d", 3): 4 << 20}, "node n") == ""
    assert service._check_fit({("/d", 1): 7 << 20, ("/d", 2): 5 << 20}, "node n") == ""
    assert service._check_fit({("/d", 1): 5 << 20, ("/d", 2): 4 << 20}, "node n") == ""
    assert asked == [4 << 20, 2 << 20]


def test_what_nobody_asked_for_leaves_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two backups by themselves take less of a node's memory than what was asked for may; the sentence says so."""
    monkeypatch.setattr(memory_budget, "limits", lambda: [memory_budget.MemoryLimit(6 << 30, 40 << 30, "the node")])
    service = BackupService(None, {})  # type: ignore[arg-type]
    assert service._check_fit({("/d", 1): 1 << 30, ("/d", 2): 1 << 30}, "node n") == ""
    assert service._check_fit({("/d", 1): 1 << 30, ("/d", 2): 3 << 29}, "node n") == (
        "node n: two backups of each rank would take another 2.50 GiB, and the node has 2.00 GiB left for them "
        "(limit 40.00 GiB, 4.00 GiB of it kept free)"
    )
    assert memory_budget.refusal(5 << 29, memory_budget.limits(), "rank 0") == ""


SHORT = """
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.shared import memory_budget as budget
from slurm_robust.checkpoint.saving.persister import backup_service
before, taken = budget.memory, []
def memory(size_bytes, whose, what):
    taken.append(size_bytes)
    if len(taken) == 3:
        raise CheckpointError(whose + ": " + what + " more than there is")
    return before(size_bytes, whose, what)
def fit(self, rooms, whose):
    return whose + " is full" if FULL else ""
budget.memory, backup_service.BackupService._check_fit = memory, fit
"""
COUNTED = """
from slurm_robust.checkpoint import CheckpointError
from slurm_robust.checkpoint.saving.shared import messages
said = []
Checkpointer._log = lambda self, text: said.append(text)
def counted(rank, directory, options):
    training = Training("fsdp")
    saver = Checkpointer(directory, **options)
    why = ""
    try:
        for number in (1, 2, 3):
            training.step(number)
            assert saver.save(number, training.state)
        while not saver._buffers.safe():
            saver._receive(0.02)
    except CheckpointError as error:
        why = str(error)
    answer, _ = saver.link.ask(messages.AskInventory(), messages.Inventory)
    dist.barrier()
    held = sum(os.fstat(saver.link.image(of, backup=backup)).st_size for of, backup in answer.ranks)
    return [[others for others in saver.backups], sorted(answer.ranks), held // (2 << 20), why, said]
"""


def on_three(options: str) -> str:
    """A program: a rank on each of three nodes."""
    return RANKS + COUNTED + f'told(run(3, on_nodes, "a b c", counted, {NO_DISK!r}, {options}))'


@pytest.mark.parametrize("full", [True, False], ids=["asked before", "taken in vain"])
def test_one_where_one_node_has_no_memory_for_two(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """Node c is short: all ranks have one backup, rank 0 says why, and no node holds memory for a second one.

    Whether it is known before, or somebody else takes the memory in between. Who insists on two is refused.
    """
    nodes.up("a", "b")
    hook = SHORT.replace("FULL", str(full))
    with monkeypatch.context() as hooked:
        hooked.setattr(persisters, "_BOOTSTRAP", persisters._BOOTSTRAP.replace("; from", f"; exec({hook!r}); from"))
        nodes.up("c")
    (ranks,) = in_worlds(on_three("{}"))
    assert [rank[0] for rank in ranks] == [[[1], [2], [0]]] * 3
    assert [rank[1] for rank in ranks] == [[[0, False], [2, True]], [[0, True], [1, False]], [[1, True], [2, False]]]
    assert [rank[2] for rank in ranks] == [2, 2, 2]
    told = [text for text in ranks[0][4] if "backup" in text]
    why = "node c is full" if full else r"rank \d: its backup on another node takes more than there is\..*"
    assert re.fullmatch(f"one backup of each rank is kept, not two: {why}", told[0])
    assert len(told) == 1
    assert not [text for rank in ranks[1:] for text in rank[4] if "backup of each" in text]


def test_who_insists_on_two_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not fit on one node: the same sentence on all ranks, with what to type."""
    nodes.up("a", "b")
    with monkeypatch.context() as hooked:
        hook = SHORT.replace("FULL", "True")
        hooked.setattr(persisters, "_BOOTSTRAP", persisters._BOOTSTRAP.replace("; from", f"; exec({hook!r}); from"))
        nodes.up("c")
    (ranks,) = in_worlds(on_three('{"backups": 2}'))
    (why,) = {rank[3] for rank in ranks}
    assert "its backup on another node takes more than there is" in why
    assert "Checkpointer(backups=1)" in why
