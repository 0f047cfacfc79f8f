"""Which rank this process is, and how it waits for the others, without importing what the program did not import."""

from __future__ import annotations

import os
import sys
from typing import Any

_RANK_VARIABLES = ("RANK", "SLURM_PROCID")


def rank() -> int:
    """By torch.distributed where it is up, else by the environment; 0 where nothing tells."""
    up = _distributed()
    if up is not None:
        return int(up.get_rank())
    told = (os.environ.get(name, "") for name in _RANK_VARIABLES)
    return next((int(text) for text in told if text.isdecimal()), 0)


def wait_for_all() -> None:
    """A barrier of all ranks where torch.distributed is up; nothing otherwise."""
    up = _distributed()
    if up is not None:
        up.barrier()


def _distributed() -> Any:
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None
