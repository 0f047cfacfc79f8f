"""A training whose ranks come to stand in collectives that never meet: at one step, in its first attempt.

With `--recorder` a thread answers the pipe for flight-recorder dumps, as NCCL's monitor thread does. Gloo has a
recorder, too, and nobody who serves it. With `--pipeline` the last two ranks, which are one pipeline, leave the others:
one waits for what the other never sends.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

from slurm_robust import progress


def serve_dumps(rank: int) -> None:
    """Write a dump whenever somebody writes to the pipe of this rank."""
    pipe = Path(f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe")
    os.mkfifo(pipe)
    while True:
        with pipe.open("rb") as asked:
            asked.read()
        whole = Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}")
        part = whole.with_suffix(".part")
        part.write_bytes(_dump_fr_trace())
        part.rename(whole)


def main() -> None:
    """Train; at the step one rank goes to another collective than the others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--hang-at", type=int, default=12)
    parser.add_argument("--done", type=Path, required=True)
    parser.add_argument("--recorder", action="store_true")
    parser.add_argument("--pipeline", action="store_true")
    parser.add_argument("--resume", action="store_true", help="a start from zero loses nothing here")
    args = parser.parse_args()
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    if args.recorder:
        threading.Thread(target=serve_dumps, args=(rank,), daemon=True, name="recorder").start()
    gradient = torch.ones(1000)
    hangs = rank >= world - (2 if args.pipeline else 1)
    done = args.done.with_name(f"{args.done.name}-{rank}")
    for step in range(args.steps):
        time.sleep(0.1)
        if step == args.hang_at and hangs and not done.exists():
            done.touch()
            if rank == world - 1:
                dist.broadcast(torch.ones(7), 0)
            else:
                dist.recv(torch.ones(7), world - 1)
        dist.all_reduce(gradient)
        progress.step(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
