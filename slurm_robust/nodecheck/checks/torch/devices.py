"""Has what the checks that compute share: the devices, and whether torch is there to use them."""

from __future__ import annotations

import importlib.util
from typing import Any

from slurm_robust.nodecheck.checks import Context, Finding

LANE = "torch"
"""The lane of all these checks: one process, since torch takes seconds to load."""


def absent(context: Context) -> str:
    """Return why there is nothing to compute with, or an empty text."""
    if not context.real_root:
        return "another machine's files are looked at"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed for this Python"
    return ""


def skipped(facts: dict[str, Any]) -> Finding:
    """Return the finding for the reason that `absent` gave."""
    return Finding.skip("no_torch", f"not computed: {facts['absent']}")


def devices(torch: Any) -> list[str]:
    """Return `cuda:0` and so on; the CPU if there is no GPU."""
    if torch.cuda.is_available():
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu"]


def model(torch: Any, device: str) -> str:
    """Devices of the same text compute the same bits: model, processors, memory (a MIG slice is another model)."""
    if device == "cpu":
        return "CPU"
    found = torch.cuda.get_device_properties(device)
    return f"{found.name}, {found.multi_processor_count} SMs, {found.major}.{found.minor}"


def matrices(torch: Any, size: int) -> tuple[Any, Any]:
    """Return two square matrices of small whole numbers, whose product is exact in float32 in any order of sums."""
    rows = torch.arange(size).unsqueeze(1)
    columns = torch.arange(size).unsqueeze(0)
    left = (rows * 7 + columns * 3 + rows * columns) % 11 - 5
    right = (rows * 5 + columns * 2 + rows * columns * 3) % 13 - 6
    return left, right


def checksum(torch: Any, tensor: Any) -> int:
    """Return a number that changes with any flipped bit and any two exchanged values."""
    bits = tensor.cpu().contiguous().view(torch.int32).flatten().to(torch.int64)
    weights = torch.arange(1, bits.numel() + 1, dtype=torch.int64) % 65521 + 1
    return int((bits * weights).sum())
