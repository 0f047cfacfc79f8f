"""What the ranks of scripts/kill_saves.py do: a training that saves, and the one that is started after it died."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import kill_point
import torch
from kill_cases import STEPS, TRAINER, Case

from slurm_robust.checkpoint import Checkpointer, TierOptions
from slurm_robust.checkpoint.saving.rank import buffers
from slurm_robust.checkpoint.saving.rank.training_state import PerRank

DEVICE = "KILL_SAVES_DEVICE"
"""Where the state lies; on the CPU, unless this variable names a GPU."""
NOTED = {"slot void": "began", "all copied": "whole", "slot complete": "copied"}
"""Points of a copy → the name that is left there."""
_POLL_S = 0.005


def state(step: int, rank: int) -> dict[str, Any]:
    """What is saved as that step: other bytes at each, and of each rank."""
    generator, device = torch.Generator().manual_seed(step), os.environ.get(DEVICE, "cpu")
    sizes = (1, 70_001, 300_000, 5)
    tensors = {f"t{n}": torch.randn(size, generator=generator).to(device) for n, size in enumerate(sizes)}
    return {"tensors": tensors, "step": step, "own": PerRank(Own(f"{step} of {rank}, " * 500))}


class Own:
    """What a rank alone has."""

    def __init__(self, text: str) -> None:
        self.text = text

    def state_dict(self) -> dict[str, Any]:
        """As a data loader's."""
        return {"text": self.text}

    def load_state_dict(self, found: dict[str, Any]) -> None:
        """The other way."""
        self.text = found["text"]


def train(rank: int, case: Case, folder: Path) -> None:
    """A rank: it saves all steps, or dies."""
    kill_point.here("rank")
    reached = kill_point.watch((TRAINER,), "rank" if rank == case.ranks - 1 else "spared")

    def note(point: str) -> None:
        if point == "slot complete":
            (folder / f"copied-{rank}-{step}").touch()
        if rank == case.ranks - 1:
            reached(point)

    buffers.reached = note
    if case.keeper == "none":  # whoever comes there first: rank 0 alone seals and prunes
        kill_point.watch_writing("rank")
    saver = Checkpointer(folder / "ckpt", keep=2, asynchronous=case.keeper != "none")
    for step in range(1, STEPS + 1):
        assert saver.save(step, state(step, rank)), saver.failures
        if step % 2 == 0 or case.keeper == "none":
            sealed = saver.wait(60.0)
            assert sealed == step, (sealed, step, saver.failures)
            (folder / f"sealed-{rank}-{step}").touch()
    assert saver.failures == []


def train_backed_up(rank: int, case: Case, folder: Path) -> None:
    """A rank whose copies another node keeps, too: it saves all steps, and stays until the last one is kept."""
    kill_point.here("rank")

    def note(point: str) -> None:
        if point in NOTED:
            (folder / f"{NOTED[point]}-{rank}-{step}").touch()

    buffers.reached = note
    saver = Checkpointer(folder / "ckpt", keep=2, tiers=TierOptions(every={"shared": case.shared}))
    for step in range(1, STEPS + 1):
        assert saver.save(step, state(step, rank)), saver.failures
    made = saver._buffers
    assert made is not None
    while saver.ranks.maximum(int(made.busy())) != [0]:
        made.ensure_alive()
        time.sleep(_POLL_S)
    assert saver.failures == []


def go_on(rank: int, case: Case, folder: Path) -> None:
    """A rank of the training that is started next: it loads, compares, and saves one step more."""
    into = state(999, rank)
    saver = Checkpointer(folder / "ckpt", keep=2, asynchronous=case.keeper != "none")
    step = saver.load_latest(into) or 0
    source = saver.resumed.source if saver.resumed is not None else ""
    kept = [path.name for path in folder.glob("kept-*")]
    (folder / f"loaded-{rank}").write_text(json.dumps([step, source, step == 0 or _same(into, step, rank), kept]))
    assert saver.save(step + 1, state(step + 1, rank)), saver.failures
    sealed = saver.wait(60.0)
    assert sealed == step + 1, (sealed, step, saver.failures)
    saver.close()


def _same(into: dict[str, Any], step: int, rank: int) -> bool:
    meant = state(step, rank)
    tensors = all(torch.equal(into["tensors"][name], tensor) for name, tensor in meant["tensors"].items())
    return tensors and into["step"] == step and into["own"].of.text == meant["own"].of.text
