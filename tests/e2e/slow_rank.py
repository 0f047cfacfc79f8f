"""A training over gloo in which one rank does a fifth more work each step; tells its own work in processor time."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

from slurm_robust import progress

SLOW, STEPS, LOOPS = int(sys.argv[1]), int(sys.argv[2]), 60


def main() -> None:
    """Work, say how much of it was its own, and wait for the others."""
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    torch.set_num_threads(1)
    store = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    progress.layout(dp=world)
    a = torch.ones(160, 160)
    for step in range(STEPS):
        # Processor time: on a machine shared with others, the clock would show their work too.
        began_s = time.thread_time()
        for _ in range(LOOPS + (LOOPS // 5 if rank == SLOW else 0)):
            a = (a @ a).clamp(0, 1)
        worked_s = time.thread_time() - began_s
        dist.all_reduce(a)
        time.sleep(0.05)
        progress.step(step)
        progress.timing(compute_s=worked_s)
    dist.destroy_process_group()


main()
