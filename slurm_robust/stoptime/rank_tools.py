"""What the ranks of the tests share: they join a process group, and time work on a device. Needs PyTorch only."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any


def join_group(dist: Any, spec: dict[str, Any], host: str) -> None:
    """Join the process group of a test: NCCL between GPUs, else gloo.

    Args:
        dist: `torch.distributed`.
        spec: `device`, `rank`, `world`, `port` of the first rank, `limit_s`.
        host: Where the first rank is.
    """
    dist.init_process_group(
        "gloo" if spec["device"] == "cpu" else "nccl",
        init_method=f"tcp://{host}:{spec['port']}",
        rank=spec["rank"],
        world_size=spec["world"],
        timeout=dt.timedelta(seconds=spec["limit_s"]),
    )


def timed(torch: Any, device: str, work: Callable[[], Any]) -> float:
    """How long the work takes on the device, in seconds; never 0."""
    if device != "cpu":
        torch.cuda.synchronize()
    began_s = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return max(time.perf_counter() - began_s, 1e-9)
