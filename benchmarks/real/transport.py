"""How ranks speak to each other, and where they compute: gloo on CPUs, gloo or NCCL on GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

_RANK = "{rank}"


@dataclass(frozen=True)
class Transport:
    """What the ranks of a job have in common.

    Attributes:
        variables: For each rank's environment; `{rank}` stands for its number.
    """

    backend: str = "gloo"
    device: str = "cpu"
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, str]:
        """For a rank's command line."""
        return self.backend, self.device


def join(transport: Transport, rendezvous: str, rank: int, world: int, timeout: timedelta) -> None:
    """In a rank: make the process group. Ranks share the GPUs that there are."""
    import torch  # noqa: PLC0415 (who only plans a case needs no torch)
    import torch.distributed as dist  # noqa: PLC0415 (the same)

    torch.set_num_threads(1)
    for key, value in os.environ.items():
        if _RANK in value and key.startswith("NCCL_"):
            os.environ[key] = value.replace(_RANK, str(rank))
    if transport.device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    where = f"file://{rendezvous}"
    dist.init_process_group(transport.backend, init_method=where, timeout=timeout, rank=rank, world_size=world)
