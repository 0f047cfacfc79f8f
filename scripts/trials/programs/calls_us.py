"""A training that calls slurm_robust: `progress.step` in its loop, and checkpoints that are sealed.

python calls_us.py CHECKPOINT_FOLDER
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from plain_ddp import SAVE_EVERY, STEPS, Squares
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from slurm_robust import checkpoint, progress


def main() -> None:
    """Train."""
    folder = sys.argv[1]
    progress.mark("imports_done")
    dist.init_process_group("gloo")
    progress.mark("process_groups_ready")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 16))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    first = 1
    found = checkpoint.resume_from_env(folder)
    if found.path is not None:
        state = checkpoint.load(found.path)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = found.step + 1
    progress.mark("checkpoint_loaded")
    model = DistributedDataParallel(net)
    steps = range(first, STEPS + 1)
    for step, batch in zip(steps, DataLoader(Squares(), batch_size=None, sampler=steps, num_workers=1), strict=True):
        loss = (model(batch) - batch.square()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(step, loss=loss.item())
        if step % SAVE_EVERY == 0:
            with progress.phase("checkpoint", timeout_s=60):
                checkpoint.save(folder, step, {"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    progress.set_phase("idle")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
