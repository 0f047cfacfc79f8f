"""Runs one rank of the test within a node: known answers, copies, and an all-to-all among the node's own ranks.

It runs in a rank that `rank_server` forked, with the Python of the training: one for each GPU, or one on the CPU. It
needs PyTorch and nothing else.
"""

from __future__ import annotations

from typing import Any

from slurm_robust.stoptime.rank_tools import join_group, timed

CPU_SIZE, CUDA_SIZE = 256, 4096
"""Rows of the matrices: milliseconds on a CPU, every processor of a GPU for some milliseconds."""
CPU_COPY_BYTES, CUDA_COPY_BYTES = 8 << 20, 256 << 20
PART_ELEMENTS = 1 << 18
"""How many numbers of four bytes each rank sends to each other rank in the all-to-all."""
REPEATS = 5
_MODULUS = 251


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Test one device, and its connection to the node's other devices.

    Args:
        spec: `device`, `rank`, `world` (of this node), `port` on the loopback, `limit_s`.

    Returns:
        `wrong`: how many numbers were wrong, by operation. `gb_per_s`: the best of some copies, by way: `memory` within
        the host's memory, `h2d`, `d2h`, and `d2d` to the next GPU.
    """
    import torch  # noqa: PLC0415 (the rank server has loaded it; nothing else of ours may)

    device, world = spec["device"], spec["world"]
    if device == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
    wrong = {"products": _products(torch, device)}
    rates: dict[str, float] = {}
    for way, source, target in _ways(torch, device, spec["rank"], world):
        wrong[way], rates[way] = _copy(torch, device, source, target)
    if world > 1:
        wrong["all_to_all"] = _all_to_all(torch, spec)
    return {"wrong": wrong, "gb_per_s": rates}


def _products(torch: Any, device: str) -> int:
    """Return how many numbers, and sums of rows and columns, are wrong: small whole numbers, so all are exact."""
    size = CPU_SIZE if device == "cpu" else CUDA_SIZE
    numbers = torch.arange(size * size).view(size, size)
    left, right = numbers % 11 - 5, numbers % 13 - 6
    ones = torch.ones(size, dtype=torch.int64)
    rows, columns = left @ (right @ ones), (ones @ left) @ right
    left, right = left.float().to(device), right.float().to(device)
    wrong = 0
    for _ in range(REPEATS):
        product = (left @ right).cpu()
        # A wrong last bit gives a number that is not whole, which a sum may round away.
        wrong += int((product != product.round()).sum())
        product = product.to(torch.int64)
        wrong += int((product.sum(dim=1) != rows).sum() + (product.sum(dim=0) != columns).sum())
    return wrong


def _ways(torch: Any, device: str, rank: int, world: int) -> list[tuple[str, Any, Any]]:
    """Return name, source and target of each copy; the source has a known pattern."""
    on_cpu = device == "cpu"
    size = CPU_COPY_BYTES if on_cpu else CUDA_COPY_BYTES
    pattern = torch.arange(_MODULUS, dtype=torch.uint8).repeat(size // _MODULUS)
    if on_cpu:
        return [("memory", pattern, torch.zeros_like(pattern))]
    pinned = pattern.pin_memory()
    there = pattern.to(device)
    ways = [
        ("h2d", pinned, torch.zeros_like(there)),
        ("d2h", there, torch.zeros_like(pattern).pin_memory()),
    ]
    if world > 1:
        ways.append(("d2d", there, torch.zeros_like(there, device=f"cuda:{(rank + 1) % world}")))
    return ways


def _copy(torch: Any, device: str, source: Any, target: Any) -> tuple[int, float]:
    """Return how many bytes did not arrive, and the GB/s of the best copy."""
    best_s = min(timed(torch, device, lambda: target.copy_(source, non_blocking=True)) for _ in range(REPEATS))
    return int((target.cpu() != source.cpu()).sum()), round(source.numel() / best_s / 1e9, 3)


def _all_to_all(torch: Any, spec: dict[str, Any]) -> int:
    """Return how many numbers are wrong if each rank sends another part to each other rank."""
    import torch.distributed as dist  # noqa: PLC0415 (as torch)

    rank, world, device = spec["rank"], spec["world"], spec["device"]
    join_group(dist, spec, "127.0.0.1")
    wrong = 0
    for turn in range(REPEATS):
        sent = torch.cat([_part(torch, rank, other, turn, device) for other in range(world)])
        received = torch.zeros_like(sent)
        dist.all_to_all_single(received, sent)
        wanted = torch.cat([_part(torch, other, rank, turn, device) for other in range(world)])
        wrong += int((received != wanted).sum())
    dist.barrier()
    dist.destroy_process_group()
    return wrong


def _part(torch: Any, source: int, target: int, turn: int, device: str) -> Any:
    """Return the numbers that one rank sends to another: they differ for each pair and each turn."""
    numbers = torch.arange(PART_ELEMENTS, device=device, dtype=torch.int32)
    return (numbers * 7 + source * 13 + target * 29 + turn) % _MODULUS
