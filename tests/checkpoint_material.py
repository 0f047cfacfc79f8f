"""Checkpoints as frameworks write them: real files of torch.save, torch.distributed.checkpoint and safetensors."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    """A few tensors of several types."""
    torch.manual_seed(seed)
    return {
        "layer.weight": torch.randn(16, 8),
        "layer.bias": torch.randn(16).to(torch.bfloat16),
        "count": torch.arange(5),
    }


def plain(at: Path) -> Path:
    """A folder of two torch.save files."""
    path = at / "step-7"
    path.mkdir()
    for rank in range(2):
        torch.save({"model": state(rank), "step": 7}, path / f"rank{rank}.pt")
    return path


def legacy(at: Path) -> Path:
    """The same as before torch 1.6."""
    path = at / "step-7"
    path.mkdir()
    torch.save({"model": state(), "step": 7}, path / "model.pt", _use_new_zipfile_serialization=False)
    return path


_TWO_RANKS = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
def rank(number, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=number, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(40.0).reshape(10, 4)
    dcp.save({"w": distribute_tensor(whole, mesh, [Shard(0)]), "lr": 0.1, "b": torch.ones(3)}, checkpoint_id=folder)
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(rank, args=(sys.argv[1],), nprocs=2)
"""


def distributed(at: Path) -> Path:
    """Two ranks of torch.distributed.checkpoint, with a sharded tensor."""
    path, program = at / "step-7", at / "two_ranks.py"
    program.write_text(_TWO_RANKS)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-W", "ignore", program, path], check=True, timeout=120, env=env)
    for left in (program, Path(f"{path}.store")):
        left.unlink(missing_ok=True)
    return path


def megatron(at: Path) -> Path:
    """TP 2, PP 2, with a distributed optimizer, and the tracker."""
    path = at / "iter_0000007"
    args = argparse.Namespace(tensor_model_parallel_size=2, pipeline_model_parallel_size=2, world_size=4)
    for tensor in range(2):
        for pipeline in range(2):
            folder = path / f"mp_rank_{tensor:02d}_{pipeline:03d}"
            folder.mkdir(parents=True)
            torch.save({"args": args, "iteration": 7, "model": state(tensor)}, folder / "model_optim_rng.pt")
            torch.save({"optimizer": state(9)}, folder / "distrib_optim.pt")
    (at / "latest_checkpointed_iteration.txt").write_text("7")
    return path


def deepspeed(at: Path) -> Path:
    """ZeRO 1, four data-parallel ranks of two model-parallel ones, and the tracker."""
    path = at / "global_step7"
    path.mkdir()
    for model in range(2):
        states = {"module": state(model), "dp_world_size": 4, "mp_world_size": 2, "global_steps": 7}
        torch.save(states, path / f"mp_rank_{model:02d}_model_states.pt")
        for data in range(4):
            name = f"bf16_zero_pp_rank_{data}_mp_rank_{model:02d}_optim_states.pt"
            torch.save({"optimizer_state_dict": state(data)}, path / name)
    (at / "latest").write_text("global_step7")
    return path


def trainer(at: Path) -> Path:
    """HF Trainer on two ranks, weights in two safetensors files with an index."""
    path = at / "checkpoint-7"
    path.mkdir()
    weights = state()
    parts = {f"model-0000{n + 1}-of-00002.safetensors": {k: weights[k]} for n, k in enumerate(list(weights)[:2])}
    for name, tensors in parts.items():
        save_file(tensors, path / name)
    places = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for name in ("optimizer.pt", "scheduler.pt", "training_args.bin"):
        torch.save({"state": state(), "lr": 0.1}, path / name)
    for rank in range(2):
        torch.save({"cpu": torch.get_rng_state()}, path / f"rng_state_{rank}.pth")
    (path / "trainer_state.json").write_text('{"global_step": 7, "log_history": [{"loss": NaN}]}')
    return path


def trainer_with_deepspeed(at: Path) -> Path:
    """HF Trainer whose weights DeepSpeed writes."""
    path = at / "checkpoint-7"
    path.mkdir()
    deepspeed(path)
    (path / "trainer_state.json").write_text('{"global_step": 7}')
    return path


def lightning(at: Path) -> Path:
    """One file, as ModelCheckpoint writes it."""
    path = at / "epoch=0-step=7.ckpt"
    saved = {"pytorch-lightning_version": "2.5.0", "epoch": 0, "global_step": 7, "state_dict": state()}
    torch.save(saved, path)
    return path


MAKERS: dict[str, tuple[Callable[[Path], Path], str, int]] = {
    "torch.save": (plain, "torch.save", 0),
    "torch.save, old": (legacy, "torch.save", 0),
    "DCP": (distributed, "torch.distributed.checkpoint", 2),
    "Megatron-LM": (megatron, "Megatron-LM", 4),
    "DeepSpeed": (deepspeed, "DeepSpeed", 8),
    "HF Trainer": (trainer, "HF Trainer", 2),
    "HF Trainer with DeepSpeed": (trainer_with_deepspeed, "DeepSpeed", 8),
    "Lightning": (lightning, "Lightning", 0),
}
"""Name → what makes one, a format that is recognised, and the world size that is told."""
