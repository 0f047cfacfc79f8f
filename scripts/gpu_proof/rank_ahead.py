"""A training whose Python runs ahead of the GPU: launches many kernels, and waits for a loss now and then.

python -m gpu_proof.rank_ahead FOLDER DEVICE [endless]

Appends each step's seconds to FOLDER/steps. With `endless` a kernel never ends after a few steps, and Python waits.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

WIDTH, LAYERS, TOKENS = 2048, 16, 2048
LOGS_EVERY = 10
ENDLESS_AT = 30


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    """Launch one step; returns its loss, which may not be computed yet."""
    optimizer.zero_grad()
    loss: torch.Tensor = model(batch).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss


def wait_for_loss(loss: torch.Tensor) -> float:
    """Here Python waits for everything that was launched."""
    return loss.item()


def never_ends(device: str) -> None:
    """A kernel that does not end, and a program that waits for it."""
    if device == "cuda":
        torch.cuda._sleep(1 << 62)
        torch.cuda.synchronize()
    while True:  # the CPU's stand-in
        time.sleep(1000)


def main(folder: str, device: str, *endless: str) -> None:
    """Train until somebody ends it."""
    torch.set_num_threads(1)
    width, tokens = (WIDTH, TOKENS) if device == "cuda" else (128, 64)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(LAYERS))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(tokens, width, device=device)
    with Path(folder, "steps").open("a") as steps:
        for number in range(1_000_000):
            began_s = time.perf_counter()
            loss = train_step(model, optimizer, batch)
            if number % LOGS_EVERY == 0:
                wait_for_loss(loss)
            print(time.perf_counter() - began_s, file=steps, flush=True)
            if endless and number == ENDLESS_AT:
                never_ends(device)


if __name__ == "__main__":
    main(*sys.argv[1:])
