"""Do data move between host and GPUs, and among GPUs, as fast as they should?"""

from __future__ import annotations

import statistics
from typing import Any

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.checks.torch import devices as torch_devices

_KINDS = {"h2d": "host to device", "d2h": "device to host", "d2d": "device to device"}
_SLOW = 0.5


def _gb_per_s(torch: Any, target: Any, source: Any, device: str, repeats: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.device(device):
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(repeats):
            target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
    return float(round(source.numel() * repeats / max(start.elapsed_time(end), 1e-6) / 1e6, 2))


def probe(context: Context, options: Options) -> Facts:
    """Copies of pinned memory to and from each GPU, and from each GPU to the next."""
    if why := torch_devices.absent(context):
        return {"absent": why}
    import torch  # noqa: PLC0415 (seconds, and only here)

    devices = torch_devices.devices(torch)
    if devices == ["cpu"]:
        return {"absent": "there is no GPU"}
    size, repeats = options["size_mb"] << 20, options["repeats"]
    rates: dict[str, dict[str, float]] = {kind: {} for kind in _KINDS}
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    for index, device in enumerate(devices):
        there = torch.empty(size, dtype=torch.uint8, device=device)
        rates["h2d"][device] = _gb_per_s(torch, there, host, device, repeats)
        rates["d2h"][device] = _gb_per_s(torch, host, there, device, repeats)
        other = devices[(index + 1) % len(devices)]
        if other != device:
            target = torch.empty(size, dtype=torch.uint8, device=other)
            rates["d2d"][f"{device} to {other}"] = _gb_per_s(torch, target, there, device, repeats)
    return {"rates": rates}


def judge(facts: Facts, options: Options) -> Finding:
    """Below a minimum that the site set it fails; at half of its sisters' rate it warns."""
    if "absent" in facts:
        return torch_devices.skipped(facts)
    slow: list[str] = []
    odd: list[str] = []
    for kind, said in _KINDS.items():
        rates = facts["rates"][kind]
        least = options[f"{kind}_min_gb_per_s"]
        usual = statistics.median(rates.values()) if rates else 0.0
        for path, rate in rates.items():
            if rate < least:
                slow.append(f"{path} {said}: {rate:g} of {least:g} GB/s")
            elif len(rates) > 2 and rate < _SLOW * usual:
                odd.append(f"{path} {said}: {rate:g} GB/s, its sisters {usual:g}")
    remedy = (
        "with no job on the node run it again; look at PCIe width and speed, NUMA and NVLink (`nvidia-smi topo -m`)"
    )
    if slow:
        return Finding.fail("slow_copies", "; ".join(slow), remedy, facts)
    if odd:
        return Finding.warn("slower_than_sisters", "; ".join(odd), remedy, facts)
    return Finding.passed("copies_fast", f"copies of {len(facts['rates']['h2d'])} GPUs are fast", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="torch: timed copies of pinned memory to, from and among the GPUs",
    cost="seconds: torch is loaded, some GB are copied",
    lane=torch_devices.LANE,
    deadline_s=120.0,
    options={
        "size_mb": Option(256, "MiB of a copy", "ours: long enough that the start of a copy does not count"),
        "repeats": Option(10, "copies of each kind", "ours"),
        "h2d_min_gb_per_s": Option(0.0, "GB/s host to device below which it fails; 0: never", "ours: boards differ"),
        "d2h_min_gb_per_s": Option(0.0, "GB/s device to host below which it fails; 0: never", "ours: boards differ"),
        "d2d_min_gb_per_s": Option(0.0, "GB/s between two GPUs below which it fails; 0: never", "ours: boards differ"),
    },
)
