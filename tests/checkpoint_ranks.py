"""Checkpoints that need several ranks: torch.distributed.checkpoint in its forms, written by two real processes."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

_PROGRAM = """
import argparse, os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

def rank(number, folder):
    dist.init_process_group("cpu:gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(40.0).reshape(10, 4)
    state = {"w": distribute_tensor(whole, mesh, [Shard(0)]), "lr": 0.1, "b": torch.ones(3)}
    dcp.save(state, checkpoint_id=f"{folder}/sync/step-7")
    dcp.async_save(state, checkpoint_id=f"{folder}/async/step-7").result()
    torch.manual_seed(0)
    model = fully_shard(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=f"{folder}/fsdp2/step-7")
    dist.destroy_process_group()

if __name__ == "__main__":
    # Forked: torch is imported once.
    mp.start_processes(rank, args=(sys.argv[1],), nprocs=2, start_method="fork")
"""


@functools.cache
def _written() -> Path:
    """All of them, written once a test process: starting two ranks costs seconds."""
    folder = Path(tempfile.mkdtemp(prefix="srobust-ranks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = folder / "two_ranks.py"
    program.write_text(_PROGRAM)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-W", "ignore", program, folder], check=True, timeout=150, env=env)
    return folder


def distributed(at: Path) -> Path:
    """Two ranks of torch.distributed.checkpoint, with a sharded tensor."""
    return Path(shutil.copytree(_written() / "sync" / "step-7", at / "step-7"))


def asynchronous(at: Path) -> Path:
    """The same by `async_save`, once it is done."""
    return Path(shutil.copytree(_written() / "async" / "step-7", at / "step-7"))


def fsdp2(at: Path) -> Path:
    """Model and AdamW of FSDP2, as torchtitan keeps them."""
    return Path(shutil.copytree(_written() / "fsdp2" / "step-7", at / "step-7"))


def megatron_dist(at: Path) -> Path:
    """Megatron's torch_dist: the same shards beside `common.pt` and `metadata.json`, and the tracker."""
    path = Path(shutil.copytree(_written() / "sync" / "step-7", at / "iter_0000007"))
    torch.save({"iteration": 7, "args": {"world_size": 2}, "checkpoint_version": 3.0}, path / "common.pt")
    told = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
    (path / "metadata.json").write_text(json.dumps(told))
    (at / "latest_checkpointed_iteration.txt").write_text("7")
    return path
