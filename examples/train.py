"""A small GPT in torch DDP, trained on text that every machine has: the source of Python's standard library.

    srun -N4 --ntasks-per-node=1 python train.py --checkpoint-dir ckpt
    torchrun --nproc-per-node=2 train.py --checkpoint-dir ckpt

The three places that use slurm_robust are marked (1), (2) and (3): the program resumes from the newest verified
checkpoint, reports its progress, and writes checkpoints that are verified. The batches of a step depend on its number
alone, so a resumed run continues exactly as if nothing had happened.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sysconfig
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

# One thread a rank: ranks share small machines, and torch reads these when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from faults import Fault
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, Dataset

from slurm_robust import checkpoint, progress

TEXT_BYTES = 2 << 20


def arguments() -> argparse.Namespace:
    """What can be set on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-dir", default="checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps; 0: only at the end")
    parser.add_argument("--eval-every", type=int, default=50, help="steps; 0: never")
    parser.add_argument("--step-time-s", type=float, default=0.0, help="least time of a step")
    parser.add_argument("--workers", type=int, default=1, help="data-loader processes of each rank")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4, help="sequences a rank")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Text(Dataset[torch.Tensor]):
    """Batch `n` of this rank: its sequences depend on seed, step and rank alone."""

    def __init__(self, args: argparse.Namespace, rank: int, fault: Fault) -> None:
        self.args, self.rank, self.fault = args, rank, fault
        self.data: torch.Tensor | None = None

    def text(self) -> torch.Tensor:
        """The bytes of the standard library, read at the first use."""
        if self.data is None:
            text = bytearray()
            for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
                text += path.read_bytes()
                if len(text) >= TEXT_BYTES:
                    break
            self.data = torch.frombuffer(text[:TEXT_BYTES], dtype=torch.uint8)
        return self.data

    def __len__(self) -> int:
        return self.args.steps + 1

    def __getitem__(self, step: int) -> torch.Tensor:
        self.fault.in_loader(step)
        text, length = self.text(), self.args.context + 1
        chance = torch.Generator().manual_seed((self.args.seed * 1_000_003 + step) * 65_537 + self.rank)
        starts = torch.randint(len(text) - length, (self.args.batch,), generator=chance)
        return torch.stack([text[at : at + length] for at in starts.tolist()]).long()


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the feed-forward layer, each added to its input."""
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """Bytes in, the mean cross entropy of the next byte out."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, args.width), nn.Embedding(args.context, args.width)
        self.blocks = nn.Sequential(*(Block(args.width, args.heads) for _ in range(args.layers)))
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, 256)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The loss of one batch."""
        x = self.token(batch[:, :-1]) + self.place.weight[: batch.shape[1] - 1]
        logits = self.head(self.norm(self.blocks(x)))
        return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def rendezvous() -> tuple[int, int, int]:
    """Rank, world size and local rank, from torchrun's or srun's environment; MASTER_ADDR and MASTER_PORT are set."""
    env = os.environ
    if "RANK" in env and "WORLD_SIZE" in env:
        return int(env["RANK"]), int(env["WORLD_SIZE"]), int(env.get("LOCAL_RANK", 0))
    rank, world_size = int(env.get("SLURM_PROCID", 0)), int(env.get("SLURM_NTASKS", 1))
    # The step's own values: the job's values include spare nodes, and its first node may have been left out.
    world_size = int(env.get("SLURM_STEP_NUM_TASKS", world_size))
    env.setdefault("MASTER_ADDR", master_address(env.get("SLURM_STEP_NODELIST", "")))
    # The same for all ranks of this step, and different for every other step, job and cluster on a shared machine.
    names = (env.get(name, "") for name in ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SROBUST_ATTEMPT"))
    env.setdefault("MASTER_PORT", str(20000 + zlib.crc32(".".join(names).encode()) % 10000))
    return rank, world_size, int(env.get("SLURM_LOCALID", 0))


def first_host(nodes: str) -> str:
    """The first host of Slurm's folded list: `n[003-5,9]` → `n003`; empty if there is none."""
    first = re.match(r"([^,\[]+)(?:\[(\d+)[^]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in first.groups()) if first else ""


def master_address(nodes: str) -> str:
    """Where rank 0 listens: the step's first node, which is not always where srun was called."""
    first = first_host(nodes)
    own = os.environ.get("SLURMD_NODENAME", "")
    if not first or first == own == socket.gethostname().split(".")[0]:
        return first or "127.0.0.1"
    try:
        socket.getaddrinfo(first, None)
    except OSError:
        # Several slurmd share this host, under names that no resolver knows.
        return os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    return first


class Trainer:
    """Model, optimizer and data of one rank, from the newest checkpoint on."""

    def __init__(self, args: argparse.Namespace, rank: int, device: torch.device, fault: Fault) -> None:
        self.args, self.rank, self.device, self.fault = args, rank, device, fault
        torch.manual_seed(args.seed)
        self.model = GPT(args).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)
        self.first_step = 1
        self.resume()
        self.parallel = nn.parallel.DistributedDataParallel(
            self.model, device_ids=[device] if device.type == "cuda" else None
        )
        self.data = Text(args, rank, fault)

    def resume(self) -> None:
        """(1) Resume from the checkpoint that `srobust run` chose, or from the newest."""
        found = checkpoint.resume_from_env(self.args.checkpoint_dir)
        if found.path is None:
            return
        # With DDP every rank holds the same model, and rank 0 has written it; with FSDP each would load its own file.
        state = checkpoint.load(found.path, rank=0, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.first_step = state["step"] + 1
        self.say(f"resumed from step {state['step']} ({found.path})")

    def train(self) -> None:
        """All remaining steps."""
        steps = range(self.first_step, self.args.steps + 1)
        batches = iter(DataLoader(self.data, batch_size=None, sampler=steps, num_workers=self.args.workers))
        for step in steps:
            started_s = time.monotonic()
            self.fault.before_step(step)
            self.step(step, next(batches).to(self.device))
            self.pace(started_s)
            if self.due(step, self.args.checkpoint_every) or step == self.args.steps:
                self.save(step)
            if self.due(step, self.args.eval_every):
                self.evaluate(step)

    def step(self, step: int, batch: torch.Tensor) -> None:
        """One training step, and (2) the report that it is done."""
        loss = self.parallel(batch)
        self.fault.in_step(step)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        # Numbers, not tensors: the loop decides when to wait for the device, the report never does.
        value = self.fault.loss(step, loss.item())
        progress.step(step, loss=value, grad_norm=norm.item())
        self.say(f"step {step}/{self.args.steps} loss={value:.4f}")

    def save(self, step: int) -> None:
        """(3) Every rank writes its part; a full disk does not stop the training."""
        with progress.phase("checkpoint", timeout_s=600):
            self.fault.in_checkpoint(step)
            state: dict[str, Any] = {"step": step}
            if self.rank == 0:
                state |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            checkpoint.save(self.args.checkpoint_dir, step, state, required=False)

    def evaluate(self, step: int) -> None:
        """Rank 0 computes the mean loss over a few batches that are never trained on; the others wait for it."""
        if not self.fault.in_evaluation(step):
            with progress.phase("evaluate", timeout_s=600):
                if self.rank == 0:
                    self.model.eval()
                    with torch.no_grad():
                        losses = [self.model(self.data[-1 - i].to(self.device)).item() for i in range(4)]
                    self.model.train()
                    self.say(f"step {step}/{self.args.steps} eval_loss={sum(losses) / len(losses):.4f}")
        dist.barrier()

    def pace(self, started_s: float) -> None:
        """Wait until the step has taken its least time."""
        if (left_s := started_s + self.args.step_time_s - time.monotonic()) > 0:
            time.sleep(left_s)

    def say(self, line: str) -> None:
        """One line, from rank 0."""
        if self.rank == 0:
            print(line, flush=True)

    @staticmethod
    def due(step: int, every: int) -> bool:
        """True every so many steps; 0 means never."""
        return every > 0 and step % every == 0


def main() -> None:
    """Train."""
    args = arguments()
    rank, world_size, local_rank = rendezvous()
    fault = Fault(rank)
    fault.at_import()
    progress.mark("imports_done")

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world_size, timeout=timedelta(minutes=30))
    progress.mark("process_groups_ready")
    progress.layout(dp=world_size)

    trainer = Trainer(args, rank, device, fault)
    progress.mark("checkpoint_loaded")
    trainer.train()
    trainer.say("finished")
    progress.set_phase("idle")  # the training is over; the shutdown may last longer than a step
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
