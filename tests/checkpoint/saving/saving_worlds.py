"""Worlds of real gloo ranks, forked from a process that has imported torch once: `run(world_size, what, *args)`.

What runs on a rank is a function of this module's callers; its value comes back as JSON. A rank that raises fails the
whole world, with its traceback.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # each rank would import it by itself: a second each
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from slurm_robust.checkpoint import BackupOptions, Checkpointer, CopyOptions, TierOptions

OPTIONS = (BackupOptions, CopyOptions, TierOptions)
"""Programs name them; they see all of this module."""


def run(world_size: int, what: Callable[..., Any], *args: Any, expect: int = 0) -> list[Any]:
    """Run `what(rank, *args)` on each rank of a new world; their values, by rank.

    With `expect` -9, each rank kills itself in the end, and there are no values.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        pids = [_fork(rank, (world_size, port), Path(folder), what, args) for rank in range(world_size)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        assert codes == [expect] * world_size, codes
        if expect:
            return []
        return [json.loads(Path(folder, str(rank)).read_text()) for rank in range(world_size)]


def _fork(rank: int, world: tuple[int, int], folder: Path, what: Callable[..., Any], args: tuple[Any, ...]) -> int:
    pid = os.fork()
    if pid:
        return pid
    world_size, port = world
    code = 1
    try:
        torch.set_num_threads(1)
        if world_size > 1:
            address = f"tcp://127.0.0.1:{port}"
            dist.init_process_group(
                "gloo", init_method=address, rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
            )
        (folder / str(rank)).write_text(json.dumps(what(rank, *args)))
        code = 0
    except BaseException:  # noqa: BLE001 (a forked child has nobody to raise to)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class Training:
    """A small training in one of several layouts; the same steps give the same state in all of them.

    Args:
        layout: `plain`, `ddp`, `fsdp`, `tp` or `fsdp+tp`.
        seed: Of the weights before anything is loaded.
    """

    def __init__(self, layout: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 7))
        world = dist.get_world_size() if dist.is_initialized() else 1
        if layout == "ddp":
            self.model = nn.parallel.DistributedDataParallel(self.model)
        elif layout == "fsdp":
            fully_shard(self.model, mesh=init_device_mesh("cpu", (world,)))
        elif layout in ("tp", "fsdp+tp"):
            mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            self.model = parallelize_module(self.model, mesh["tp"], plan)
            if layout == "fsdp+tp":
                fully_shard(self.model, mesh=mesh["dp"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01 * (seed + 1))
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "tokens": 0,
        }

    def step(self, number: int) -> None:
        """The same batch for all ranks, so that every layout takes the same step."""
        generator = torch.Generator().manual_seed(number)
        loss = self.model(torch.randn(4, 16, generator=generator)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.state["tokens"] += 64

    def digest(self) -> str:
        """Of every byte of the whole state, whatever its layout; all ranks call it."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            found.update(name.removeprefix("module.").encode() + whole(tensor))
        for param in self.model.parameters():
            for key, value in sorted(self.optimizer.state[param].items()):
                found.update(key.encode() + whole(value))
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        found.update(repr((groups, self.scheduler.state_dict(), self.state["tokens"])).encode())
        return found.hexdigest()


def whole(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor, of all its shards."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.detach().contiguous().numpy().tobytes()


def train_and_save(
    rank: int, directory: str, layout: str, steps: int, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Train, save each step, and tell the digest after each."""
    training = Training(layout)
    digests = []
    with Checkpointer(directory, **(options or {})) as saver:
        for number in range(1, steps + 1):
            training.step(number)
            assert saver.save(number, training.state)
            digests.append(training.digest())
        sealed = saver.wait()
        assert saver.failures == []
    random = torch.rand(3).tolist()
    return {"digests": digests, "sealed": sealed, "random": random}


def load(rank: int, directory: str, layout: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Load into a training that began elsewhere."""
    training = Training(layout, seed=7)
    with Checkpointer(directory, **(options or {})) as saver:
        step = saver.load_latest(training.state)
        resumed = saver.resumed
    assert resumed is not None
    random = torch.rand(3).tolist()
    return {
        "step": step, "digest": training.digest(), "source": resumed.source, "notes": resumed.notes, "random": random
    }  # fmt: skip
