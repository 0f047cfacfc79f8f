"""Which rank this process is, and how it waits for the others, without importing what the program did not import."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

_RANK_VARIABLES = ("RANK", "SLURM_PROCID")
_NODE_VARIABLES = (
    ("LOCAL_RANK", "GROUP_RANK", ("GROUP_WORLD_SIZE",)),  # torchrun
    ("SLURM_LOCALID", "SLURM_NODEID", ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")),
)


def rank() -> int:
    """By torch.distributed where it is up, else by the environment; 0 where nothing tells."""
    up = _distributed()
    if up is not None:
        return int(up.get_rank())
    told = (os.environ.get(name, "") for name in _RANK_VARIABLES)
    return next((int(text) for text in told if text.isdecimal()), 0)


class NodeIndex(NamedTuple):
    """This node's number among those that the ranks run on, and how many there are."""

    number: int
    nodes: int


def node() -> NodeIndex | None:
    """This rank's node, where it is the first rank of it; None on every other rank.

    torchrun and Slurm tell; where neither does, and where torch.distributed is not up, rank 0 is taken to be alone.
    """
    alone = NodeIndex(0, 1) if rank() == 0 else None
    up = _distributed()
    if up is None:
        return alone
    for local, index, counts in _NODE_VARIABLES:
        numbers = [os.environ.get(local, ""), os.environ.get(index, "")]
        count = next((os.environ[name] for name in counts if os.environ.get(name, "").isdecimal()), "")
        if count and all(text.isdecimal() for text in numbers):
            told = NodeIndex(int(numbers[1]), int(count))
            first = int(numbers[0]) == 0
            # Rank 0 seals, so it has to be the first of node 0; whoever places ranks otherwise has it read all.
            if (rank() == 0) != (first and told.number == 0) or not told.number < told.nodes <= up.get_world_size():
                return alone
            return told if first else None
    return alone


def wait_for_all() -> None:
    """A barrier of all ranks where torch.distributed is up; nothing otherwise."""
    up = _distributed()
    if up is not None:
        up.barrier()


def _distributed() -> Any:
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None
