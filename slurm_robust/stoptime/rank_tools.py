"""What the ranks of the tests share: they join a process group, and time work on a device. Needs PyTorch only."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any

from slurm_robust.stoptime.rank_meeting import NotJoinedError, proof, store

_MEET_SHARE = 0.8
"""Of the limit: who does not come leaves time to say so."""


def join_group(dist: Any, spec: dict[str, Any], host: str) -> None:
    """Join the process group of a test: NCCL between GPUs, else gloo.

    Args:
        dist: `torch.distributed`.
        spec: `device`, `rank`, `world`, `port` of the first rank, `secret`, `limit_s`, and `mark`: called when this
            begins to join, and when all members have proven themselves. What fails between the two is nobody's fault.
        host: Where the first rank is.

    Raises:
        NotJoinedError: not all ranks have come, or somebody else has.
    """
    spec["mark"]()
    limit_s = _MEET_SHARE * spec["limit_s"]
    shared = store(dist, spec, host, limit_s)
    on_cpu = spec["device"] == "cpu"
    if not on_cpu:
        # NCCL's connections carry a number that only members read in the store. That they fail is a node's fault.
        spec["mark"]()
    dist.init_process_group(
        "gloo" if on_cpu else "nccl",
        store=shared,
        rank=spec["rank"],
        world_size=spec["world"],
        timeout=dt.timedelta(seconds=spec["limit_s"]),
    )
    if on_cpu:
        _prove_each_connection(dist, spec)
        spec["mark"]()


def _prove_each_connection(dist: Any, spec: dict[str, Any]) -> None:
    """Show on each of gloo's connections that its other end is the rank that it says: gloo does not ask."""
    import torch  # noqa: PLC0415 (loaded by the caller)

    others = [rank for rank in range(spec["world"]) if rank != spec["rank"]]

    def bits(source: int, target: int) -> Any:
        return torch.tensor(list(proof(spec["secret"], "gloo", source, target)), dtype=torch.uint8)

    mine = [dist.isend(bits(spec["rank"], other), dst=other) for other in others]
    for other in others:
        wanted = bits(other, spec["rank"])
        given = torch.zeros_like(wanted)
        dist.recv(given, src=other)
        if not torch.equal(given, wanted):
            raise NotJoinedError(f"who is connected as rank {other} does not know the secret of the test")
    for sent in mine:
        sent.wait()


def timed(torch: Any, device: str, work: Callable[[], Any]) -> float:
    """How long the work takes on the device, in seconds; never 0."""
    if device != "cpu":
        torch.cuda.synchronize()
    began_s = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return max(time.perf_counter() - began_s, 1e-9)
