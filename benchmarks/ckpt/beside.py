"""How much longer the steps of a training take that saves: the stall, and all that goes on beside them.

Each way trains in a process of its own, forked from one: forward, backward, AdamW. They take turns: a few steps without
a save, then steps from a save on until it is on the disk.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ckpt import ways
from ckpt.stall import Runner
from ckpt.ways import KEPT, OURS, UNTIL

COMPARED = (OURS, UNTIL, KEPT, "async_save, async staging", "async_save, process")
_BATCH = 16
_PLAIN = 3
LAYERS = 24


class Took(NamedTuple):
    """One turn, seconds.

    Attributes:
        plain_s: A step without a save, the median of a few.
        first_s: What the step with the save took longer than that.
        all_s: What all steps took longer, until the save was on the disk.
    """

    plain_s: float
    first_s: float
    all_s: float


def training(size_bytes: int, device: str = "cpu") -> dict[str, Any]:
    """A model that can train, and its AdamW, with a state of about so many bytes."""
    width = int((size_bytes / 12 / LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, device=device) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    state = {"model": model, "optimizer": optimizer}
    step(state)
    return state


def _nothing() -> None:
    """No save."""


def step(
    state: dict[str, Any], save: Callable[[], ways.Saved] = lambda: ways.Saved(_nothing, _nothing), batch: int = _BATCH
) -> float:
    """Make a step. The save, of the state that the last one left, comes first; before the update it must have copied.

    Returns:
        Seconds, until a GPU has computed it all. What other streams do is not waited for.
    """
    weight = state["model"][0].weight
    began_s = time.perf_counter()
    copied = save().copied
    state["optimizer"].zero_grad()
    state["model"](torch.ones(batch, weight.shape[1], device=weight.device)).square().mean().backward()
    copied()
    state["optimizer"].step()
    if weight.is_cuda:
        torch.cuda.current_stream().synchronize()
    return time.perf_counter() - began_s


def turn(save: ways.Save, number: int, state: dict[str, Any], batch: int = _BATCH) -> Took:
    """Steps without a save, then steps from a save on until it is written."""
    plain_s = statistics.median(step(state, batch=batch) for _ in range(_PLAIN))
    saved: list[ways.Saved] = []

    def begin() -> ways.Saved:
        saved.append(save(number))
        return saved[0]

    took_s = [step(state, begin, batch)]
    # Waiting costs the training nothing: it is done where nobody computes.
    written = threading.Thread(target=saved[0].written)
    written.start()
    while written.is_alive():
        took_s.append(step(state, batch=batch))
    return Took(plain_s, took_s[0] - plain_s, sum(took_s) - len(took_s) * plain_s)


def measure(
    size_bytes: int, rounds: int, where: Path, say: Callable[[str], None], compared: tuple[str, ...] = COMPARED
) -> dict[str, list[Took]]:
    """Those ways, in turn; one round before the others does not count."""
    torch.set_num_threads(1)
    state = training(size_bytes)
    found: dict[str, list[Took]] = {way: [] for way in compared}
    with tempfile.TemporaryDirectory(prefix="srobust-beside-", dir=where, ignore_cleanup_errors=True) as name:
        runners: dict[str, Runner] = {}
        try:
            for number, way in enumerate(compared):
                folder = Path(name, str(number))
                folder.mkdir()
                runners[way] = Runner((way,), state, folder, turn)
                runners[way].ask("prepare")
            for number in range(rounds + 1):
                say(f"beside, {size_bytes / 1e9:g} GB: round {number} of {rounds}")
                for way, runner in runners.items():
                    took = runner.ask(way, number)
                    if number:
                        found[way].append(took)
        finally:
            for runner in runners.values():
                runner.end()
    return found
