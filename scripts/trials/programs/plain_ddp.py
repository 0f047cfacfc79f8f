"""A training as people write it: torch DDP, a DataLoader with a worker, `step N loss x`, its own checkpoint files.

python plain_ddp.py CHECKPOINT_FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS, SAVE_EVERY = 50, 10


class Squares(Dataset[torch.Tensor]):
    """Random numbers, the same for the same step."""

    def __len__(self) -> int:
        return STEPS + 1

    def __getitem__(self, step: int) -> torch.Tensor:
        return torch.rand(4, 16, generator=torch.Generator().manual_seed(step))


def newest(folder: Path) -> Path | None:
    """The checkpoint with the highest number."""
    return max(folder.glob("step-*.pt"), default=None, key=lambda path: int(path.stem.split("-")[1]))


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Written beside, then renamed, so that a killed save leaves no half file under the name."""
    beside = folder / "saving.tmp"
    torch.save(state, beside)
    beside.rename(folder / f"step-{step}.pt")
    print(f"saved step {step}", flush=True)


def main() -> None:
    """Train."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 16))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    first = 1
    found = newest(folder)
    if found is not None:
        state = torch.load(found)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    model = DistributedDataParallel(net)
    steps = range(first, STEPS + 1)
    loader = DataLoader(Squares(), batch_size=None, sampler=steps, num_workers=int(os.environ.get("WORKERS", "1")))
    for step, batch in zip(steps, loader, strict=True):
        loss = (model(batch) - batch.square()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step % SAVE_EVERY == 0:
                save(folder, step, {"step": step, "net": net.state_dict(), "optimizer": optimizer.state_dict()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
