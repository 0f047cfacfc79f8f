"""Runs another program unchanged, notes how far it is, and breaks it where the trial asks for that.

    python with_fault.py PROGRAM [ARG…]

Notes go to `$TRIAL_FOLDER/notes.jsonl`, apart from what the program itself shows, so that they are the truth that the
trial compares with: the start of each rank, rank 0's steps, and when a fault struck. Steps are counted by the
optimizer's own state, which a checkpoint carries on.
"""

from __future__ import annotations

import itertools
import json
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils.data._utils import fetch

FOLDER = Path(os.environ["TRIAL_FOLDER"])
FAULT: dict[str, Any] = json.loads(os.environ.get("TRIAL_FAULT") or "{}")
STEP_S = float(os.environ.get("TRIAL_STEP_S", "0"))
RANK = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
NODE = os.environ.get("SLURMD_NODENAME", "")
OWN_STEPS = itertools.count(1)


def note(**fields: object) -> None:
    """One line, whole even where several ranks write at once."""
    line = json.dumps({"at_s": time.time(), "rank": RANK, "node": NODE, **fields}) + "\n"
    where = os.open(FOLDER / "notes.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(where, line.encode())
    finally:
        os.close(where)


def after_step(stepped: Any, _args: object, _kwargs: object) -> None:
    """Called by torch after each step of an optimizer."""
    time.sleep(STEP_S)
    state = next(iter(stepped.state.values()), {})
    step = int(state.get("step", 0))
    here = FAULT.get("ranks") is None or RANK in FAULT["ranks"]
    if FAULT.get("kind") == "error" and here and step >= FAULT["step"]:
        note(struck="error", step=step)
        raise TypeError("unsupported operand type(s) for +: 'NoneType' and 'float'")
    own = next(OWN_STEPS)
    if FAULT.get("kind") == "cuda" and bad_node() == NODE and step >= FAULT["step"] and own > 5:
        note(struck="cuda", step=step)
        raise RuntimeError(
            "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported at some other "
            "API call, so the stacktrace below might be incorrect."
        )
    if RANK == 0:
        note(step=step)


def bad_node() -> str:
    """The node whose GPU is broken: that of the rank which the trial names, in the job's first launch."""
    place = FOLDER / "bad-node"
    return place.read_text() if place.exists() else ""


def loader_may_hang() -> None:
    """Once, on the rank that the trial names: wait for a lock that nobody lets go."""
    try:
        (FOLDER / f"hang-loader-{RANK}").unlink()
    except FileNotFoundError:
        return
    note(struck="loader")
    lock = threading.Lock()
    with lock:
        lock.acquire()


def hook_loaders() -> None:
    """PyTorch's loaders, in their worker processes; and numpy's, for a program that reads its batches itself."""
    import numpy as np  # noqa: PLC0415 (not every program has it)

    torch_fetch, memmap = fetch._MapDatasetFetcher.fetch, np.memmap

    def fetch_or_hang(self: Any, index: Any) -> Any:
        loader_may_hang()
        return torch_fetch(self, index)

    def memmap_or_hang(*args: Any, **kwargs: Any) -> Any:
        loader_may_hang()
        return memmap(*args, **kwargs)

    fetch._MapDatasetFetcher.fetch = fetch_or_hang
    np.memmap = memmap_or_hang


def main() -> None:
    """Run the program."""
    torch.set_num_threads(1)
    note(
        started=os.getpid(),
        launch=f"{os.environ.get('SLURM_RESTART_COUNT', '0')}.{os.environ.get('SLURM_STEP_ID', '')}",
    )
    if FAULT.get("kind") == "cuda" and FAULT["ranks"][0] == RANK and not (FOLDER / "bad-node").exists():
        (FOLDER / "bad-node").write_text(NODE)
    optimizer.register_optimizer_step_post_hook(after_step)
    hook_loaders()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
