"""Finds this process's rank and node, and has a barrier; imports nothing that the program did not import."""

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
    """Return the rank by torch.distributed if it is initialized, else by the environment, else 0."""
    up = _distributed()
    if up is not None:
        return int(up.get_rank())
    values = (os.environ.get(name, "") for name in _RANK_VARIABLES)
    return next((int(text) for text in values if text.isdecimal()), 0)


class NodeIndex(NamedTuple):
    """The number of this node among the ranks' nodes, and how many such nodes there are."""

    number: int
    nodes: int


def node() -> NodeIndex | None:
    """Return this rank's node if the rank is the first one of its node; None on every other rank.

    The number is read from the environment of torchrun or Slurm; without it, or without torch.distributed, rank 0
    counts as alone.
    """
    alone = NodeIndex(0, 1) if rank() == 0 else None
    up = _distributed()
    if up is None:
        return alone
    for local, index, counts in _NODE_VARIABLES:
        numbers = [os.environ.get(local, ""), os.environ.get(index, "")]
        count = next((os.environ[name] for name in counts if os.environ.get(name, "").isdecimal()), "")
        if count and all(text.isdecimal() for text in numbers):
            mine = NodeIndex(int(numbers[1]), int(count))
            first = int(numbers[0]) == 0
            # Rank 0 seals, so it has to be the first of node 0; with any other placement rank 0 reads all files.
            if (rank() == 0) != (first and mine.number == 0) or not mine.number < mine.nodes <= up.get_world_size():
                return alone
            return mine if first else None
    return alone


def wait_for_all() -> None:
    """Wait for all ranks if torch.distributed is initialized; do nothing otherwise."""
    up = _distributed()
    if up is not None:
        up.barrier()


def _distributed() -> Any:
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None
