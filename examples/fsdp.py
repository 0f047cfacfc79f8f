"""The same GPT as train.py, sharded by FSDP2, with a Checkpointer: saves beside the training, and resumes from memory.

    srobust run -N4 -n32 --ntasks-per-node=8 --robust-checkpoint-dir=ckpt python fsdp.py --checkpoint-dir ckpt
    torchrun --nproc-per-node=2 fsdp.py --checkpoint-dir ckpt

The places that use the Checkpointer are marked (1) to (5). After a killed rank, a lost node, a requeue or a preemption,
the restarted program resumes from the newest complete step, with as many ranks as there are then.
"""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from faults import Fault
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from train import GPT, Text, arguments, rendezvous

from slurm_robust import checkpoint, progress


class Trainer:
    """Model, optimizer and data of one rank."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.args, self.rank, self.device, self.fault = arguments(), rank, device, Fault(rank)
        torch.manual_seed(self.args.seed)
        self.model = GPT(self.args).to(device)
        mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("dp",))
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.args.learning_rate)
        self.data = Text(self.args, rank, self.fault)
        # (1) All that a restart needs; random generators are added automatically.
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        # Copies run during the next forward and backward pass; optimizer.step() waits for the rest of them.
        # They go to memory at each step, and to disk every --checkpoint-every steps.
        self.saver = checkpoint.Checkpointer(
            self.args.checkpoint_dir, until_update=True, every={"shared": max(1, self.args.checkpoint_every)}
        )

    def train(self) -> None:
        """Train from the newest complete step on, in memory or on disk."""
        first = (self.saver.load_latest(self.state) or 0) + 1  # (2)
        if self.saver.resumed is not None and self.saver.resumed.step is not None:
            self.say(f"resumed from step {first - 1} ({self.saver.resumed.source})")
        progress.mark("checkpoint_loaded")
        # (3) After scancel, a time limit or a preemption, the next save is the last one, and is waited for.
        self.saver.save_on(signal.SIGTERM, signal.SIGUSR1)
        skipped = checkpoint.skipped_batches(self.args.checkpoint_dir)  # (4) after a rollback from a bad loss
        for step in range(first, self.args.steps + 1):
            self.fault.before_step(step)
            loss, norm = self.step(self.data[skipped.batch(step)].to(self.device))
            loss = self.fault.loss(step, loss)
            progress.step(step, loss=loss, grad_norm=norm)
            self.say(f"step {step}/{self.args.steps} loss={loss:.4f}")
            self.saver.save(step, self.state, loss=loss, grad_norm=norm)  # (5) does nothing if no save is due
            if self.saver.stopping:
                break
        with progress.phase("checkpoint", timeout_s=600):
            self.saver.close()
        self.say(f"finished, step {self.saver.last_sealed} is sealed")

    def step(self, batch: torch.Tensor) -> tuple[float, float]:
        """One training step: its loss, and the norm of its gradients."""
        loss = self.model(batch)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        # Numbers, not tensors: the loop decides when to wait for the device.
        return mean.item() / dist.get_world_size(), norm.full_tensor().item()  # type: ignore[attr-defined]

    def say(self, line: str) -> None:
        """One line, from rank 0."""
        if self.rank == 0:
            print(line, flush=True)


def main() -> None:
    """Train."""
    rank, world_size, local_rank = rendezvous()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world_size, timeout=timedelta(minutes=30))
    progress.mark("process_groups_ready")
    progress.layout(dp=world_size)
    Trainer(rank, world_size, device).train()
    progress.set_phase("idle")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
