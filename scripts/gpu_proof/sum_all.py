"""A rank that sums a tensor with its peers, and checks the sum: do these ranks reach each other?

RANK=… WORLD_SIZE=… python sum_all.py RENDEZVOUS BACKEND DEVICE
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from real.transport import Transport, join


def main(rendezvous: str, *words: str) -> None:
    """Sum a few times: the first one makes the connections."""
    rank, world, transport = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Transport(*words)
    join(transport, rendezvous, rank, world, timedelta(seconds=50))
    for _ in range(3):
        tensor = torch.full((1 << 16,), float(rank), device=transport.device)
        dist.all_reduce(tensor)
        found, wanted = tensor[0].item(), world * (world - 1) / 2
        assert found == wanted, f"rank {rank} has {found} instead of {wanted}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
