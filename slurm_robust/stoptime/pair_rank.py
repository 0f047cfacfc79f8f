"""Runs one rank of a pair's test: all-gather and all-reduce with the other nodes; compares data, measures bandwidth.

It runs in a rank that `rank_server` forked, with the Python of the training. It needs PyTorch and nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from slurm_robust.stoptime import shape_rank
from slurm_robust.stoptime.rank_tools import join_group, timed

CPU_ELEMENTS, CUDA_ELEMENTS = 1 << 18, 1 << 24
"""Numbers of four bytes that each rank sends: 1 MiB over gloo, 64 MiB over NCCL, a large gradient bucket."""
REPEATS = 6
"""How often the test is repeated; the best time counts: a slow link is slow each time, a busy processor is not."""
_MODULUS = 97


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Take part in one group.

    Args:
        spec: `rank`, `world`, `host` and `port` of the first rank, `device`, `limit_s`; and `shape`: if given, steps of
            these kinds of parallelism are made instead.

    Returns:
        `wrong`: how many numbers were wrong, by operation. `gb_per_s` by operation: bytes that this rank must receive,
        divided by the best time.
    """
    import torch  # noqa: PLC0415 (the rank server has loaded it; nothing else of ours may)
    import torch.distributed as dist  # noqa: PLC0415 (the same)

    rank, world, device = spec["rank"], spec["world"], spec["device"]
    if device != "cpu":
        torch.cuda.set_device(device)
    join_group(dist, spec, spec["host"])
    elements = CPU_ELEMENTS if device == "cpu" else CUDA_ELEMENTS
    operations = {"all_gather": _all_gather, "all_reduce": _all_reduce}
    wrong: dict[str, int] = {}
    rates: dict[str, float] = {}
    if spec.get("shape"):
        wrong = shape_rank.run(shape_rank.ShapeRank(torch, dist, rank, world, device), spec["shape"])
        rates, operations = dict.fromkeys(wrong, 0.0), {}
    for name, operation in operations.items():
        wrong[name], best_s = operation(torch, dist, (rank, world, elements, device))
        received = 4 * elements * (world - 1) * (1 if name == "all_gather" else 2 / world)
        rates[name] = received / best_s / 1e9
    # Ranks stay until all have compared: a rank that leaves early would close connections of the others.
    dist.barrier()
    dist.destroy_process_group()
    return {"wrong": wrong, "gb_per_s": rates}


def _pattern(torch: Any, rank: int, turn: int, elements: int, device: str) -> Any:
    """Return whole numbers whose sum over a thousand ranks is below 2**24, and so exact in any order."""
    numbers = torch.arange(elements, device=device, dtype=torch.int32)
    return ((numbers * 7 + rank * 13 + turn) % _MODULUS).float()


def _all_gather(torch: Any, dist: Any, place: tuple[int, int, int, str]) -> tuple[int, float]:
    rank, world, elements, device = place
    wrong, best_s = 0, float("inf")
    gathered = [torch.empty(elements, device=device) for _ in range(world)]
    for turn in range(REPEATS):
        mine = _pattern(torch, rank, turn, elements, device)
        best_s = min(best_s, timed(torch, device, partial(dist.all_gather, gathered, mine)))
        for other, part in enumerate(gathered):
            wrong += int((part != _pattern(torch, other, turn, elements, device)).sum())
    return wrong, best_s


def _all_reduce(torch: Any, dist: Any, place: tuple[int, int, int, str]) -> tuple[int, float]:
    rank, world, elements, device = place
    wrong, best_s = 0, float("inf")
    for turn in range(REPEATS):
        values = _pattern(torch, rank, turn, elements, device)
        best_s = min(best_s, timed(torch, device, partial(dist.all_reduce, values)))
        wanted = sum(_pattern(torch, other, turn, elements, device) for other in range(world))
        wrong += int((values != wanted).sum())
    return wrong, best_s
