"""Checkpoints as frameworks write them: real files of torch.save, torch.distributed.checkpoint and safetensors."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from checkpoint_ranks import asynchronous, distributed, fsdp2, megatron_dist
from safetensors.torch import save_file

from slurm_robust.checkpoint.saving.checkpointer import Checkpointer


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


def zero2(at: Path) -> Path:
    """ZeRO 2 in fp16 on two ranks, without model parallelism; shards as DeepSpeed names them since 0.3."""
    path = at / "global_step7"
    path.mkdir()
    states = {"module": state(), "dp_world_size": 2, "mp_world_size": 1, "global_steps": 7}
    torch.save(states, path / "mp_rank_00_model_states.pt")
    for data in range(2):
        saved = {"optimizer_state_dict": {"zero_stage": 2, "state": state(data)}}
        torch.save(saved, path / f"zero_pp_rank_{data}_mp_rank_00_optim_states.pt")
    (at / "latest").write_text("global_step7")
    return path


def zero3(at: Path) -> Path:
    """ZeRO 3 in bf16: the model lies in shards, too."""
    path = at / "global_step7"
    path.mkdir()
    for data in range(4):
        states = {"module": state(data), "dp_world_size": 4, "mp_world_size": 1, "global_steps": 7}
        torch.save(states, path / f"zero_pp_rank_{data}_mp_rank_00_model_states.pt")
        saved = {"optimizer_state_dict": {"zero_stage": 3, "state": state(data)}}
        torch.save(saved, path / f"bf16_zero_pp_rank_{data}_mp_rank_00_optim_states.pt")
    (at / "latest").write_text("global_step7")
    return path


def split(at: Path) -> Path:
    """Weights alone, in two safetensors files with an index, as `save_pretrained` writes them."""
    path = at / "step-7"
    path.mkdir()
    _split_weights(path)
    return path


def _split_weights(path: Path) -> None:
    weights = state()
    parts = {f"model-0000{n + 1}-of-00002.safetensors": {k: weights[k]} for n, k in enumerate(list(weights)[:2])}
    for name, tensors in parts.items():
        save_file(tensors, path / name)
    places = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def trainer(at: Path) -> Path:
    """HF Trainer on two ranks, weights in two safetensors files with an index."""
    path = at / "checkpoint-7"
    path.mkdir()
    _split_weights(path)
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


def lightning_sharded(at: Path) -> Path:
    """A folder, as its FSDP and model-parallel strategies write it."""
    path = distributed(at).rename(at / "epoch=0-step=7.ckpt")
    torch.save({"pytorch-lightning_version": "2.5.0", "epoch": 0, "global_step": 7}, path / "meta.pt")
    return path


def nemo(at: Path) -> Path:
    """NeMo 2: a folder of Lightning's with Megatron's inside, whose common state is Lightning's, too."""
    path = at / "model--val_loss=1.23-step=7-consumed_samples=56.0-last"
    (path / "context").mkdir(parents=True)
    (path / "context" / "io.json").write_text('{"root": 1}')
    megatron_dist(path).rename(path / "weights")
    (path / "latest_checkpointed_iteration.txt").unlink()
    common = {"pytorch-lightning_version": "2.5.0", "epoch": 0, "global_step": 7, "state_dict": {}, "loops": {}}
    torch.save(common, path / "weights" / "common.pt")
    return path


def accelerate(at: Path) -> Path:
    """`save_state` on one rank."""
    path = at / "step_7"
    path.mkdir()
    save_file(state(), path / "model.safetensors")
    for name in ("optimizer.bin", "scheduler.bin"):
        torch.save({"state": state(), "lr": 0.1}, path / name)
    torch.save({"step": 7, "torch_manual_seed": torch.get_rng_state()}, path / "random_states_0.pkl")
    return path


def single(at: Path) -> Path:
    """Weights in one safetensors file."""
    path = at / "model-step-7.safetensors"
    save_file(state(), path, metadata={"format": "pt"})
    return path


def split_pickled(at: Path) -> Path:
    """Weights in two torch.save files with an index, as `save_pretrained` wrote them before safetensors."""
    path = at / "step-7"
    path.mkdir()
    weights = state()
    parts = {f"pytorch_model-0000{n + 1}-of-00002.bin": {k: weights[k]} for n, k in enumerate(list(weights)[:2])}
    for name, tensors in parts.items():
        torch.save(tensors, path / name)
    places = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


def checkpointer(at: Path) -> Path:
    """This project's own, on one rank, before its seal."""
    saver = Checkpointer(at, asynchronous=False)
    saver.save(7, {"model": state(), "tokens": 7})
    (path,) = at.glob("step-*")
    (path / "seal.json").unlink()
    return path


MAKERS: dict[str, tuple[Callable[[Path], Path], str, int]] = {
    "torch.save": (plain, "torch.save", 0),
    "torch.save, old": (legacy, "torch.save", 0),
    "DCP": (distributed, "torch.distributed.checkpoint", 2),
    "DCP, async": (asynchronous, "torch.distributed.checkpoint", 2),
    "DCP of FSDP2": (fsdp2, "torch.distributed.checkpoint", 2),
    "Megatron-LM torch_dist": (megatron_dist, "Megatron-LM", 2),
    "Megatron-LM": (megatron, "Megatron-LM", 4),
    "DeepSpeed": (deepspeed, "DeepSpeed", 8),
    "DeepSpeed ZeRO 2": (zero2, "DeepSpeed", 2),
    "DeepSpeed ZeRO 3": (zero3, "DeepSpeed", 4),
    "safetensors with an index": (split, "weights with an index", 0),
    "HF Trainer": (trainer, "HF Trainer", 2),
    "HF Trainer with DeepSpeed": (trainer_with_deepspeed, "DeepSpeed", 8),
    "Lightning": (lightning, "Lightning", 0),
    "Lightning, sharded": (lightning_sharded, "Lightning", 2),
    "NeMo": (nemo, "Megatron-LM", 2),
    "Accelerate": (accelerate, "safetensors", 0),
    "safetensors": (single, "safetensors", 0),
    "torch.save with an index": (split_pickled, "weights with an index", 0),
    "Checkpointer": (checkpointer, "torch.distributed.checkpoint", 1),
}
"""Name → what makes one, a format that is recognised, and the world size that is told."""
