"""Does each GPU multiply matrices rightly, every time, and as its sisters do?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.checks.torch import devices as torch_devices

_CPU_SIZE = 384
_REMEDY = (
    "drain; run `srobust check --only matmul` again; if it repeats, have this GPU replaced (silent data corruption)"
)


def _compute(torch: Any, device: str, size: int, repeats: int) -> dict[str, Any]:
    left, right = torch_devices.matrices(torch, size)
    # Each sum of a row of the product, in whole numbers: what the product must come to, at the cost of a vector.
    wanted = left @ (right @ torch.ones(size, dtype=torch.int64))
    noise = torch.Generator().manual_seed(size)
    a = torch.randn(size, size, generator=noise).to(device)
    b = torch.randn(size, size, generator=noise).to(device)
    left, right = left.float().to(device), right.float().to(device)
    wrong, sums = 0, []
    began_s = time.monotonic()
    for _ in range(repeats):
        product = (left @ right).cpu().to(torch.int64)
        wrong += int((product.sum(dim=1) != wanted).sum())
        sums.append(torch_devices.checksum(torch, a @ b))
    took_s = max(time.monotonic() - began_s, 1e-9)
    return {
        "device": device,
        "model": torch_devices.model(torch, device),
        "wrong_rows": wrong,
        "sums": sums,
        "gflops": round(4 * size**3 * repeats / took_s / 1e9, 1),
    }


def probe(context: Context, options: Options) -> Facts:
    """Make two products a repeat on each device: one with a known answer, one of random numbers."""
    if why := torch_devices.absent(context):
        return {"absent": why}
    import torch  # noqa: PLC0415 (seconds, and only here)

    torch.backends.cuda.matmul.allow_tf32 = False
    found, errors = [], {}
    for device in torch_devices.devices(torch):
        size = min(options["size"], _CPU_SIZE) if device == "cpu" else options["size"]
        try:
            found.append(_compute(torch, device, size, options["repeats"]))
        except RuntimeError as error:
            errors[device] = str(error).split("\n", 1)[0][:200]
    return {"devices": found, "errors": errors}


def _outsiders(found: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return devices whose result differs from that of most sisters, and devices of models with no majority."""
    guilty: list[str] = []
    split: list[str] = []
    for name in sorted({d["model"] for d in found}):
        sisters = [d for d in found if d["model"] == name]
        (common, count), *others = Counter(d["sums"][0] for d in sisters).most_common()
        if others and count > len(sisters) / 2:
            guilty += [d["device"] for d in sisters if d["sums"][0] != common]
        elif others:
            split += [d["device"] for d in sisters]
    return guilty, split


def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a wrong answer, for one that changes, and for one that differs from most sisters' answer."""
    if "absent" in facts:
        return torch_devices.skipped(facts)
    found = facts["devices"]
    guilty, split = _outsiders(found)
    faults = {
        "wrong_product": (_names(d for d in found if d["wrong_rows"]), "computes wrong products"),
        "not_repeatable": (_names(d for d in found if len(set(d["sums"])) > 1), "gives other bits each time"),
        "unlike_sisters": (guilty, "computes other bits than the GPUs of the same model"),
    }
    for reason, (names, words) in faults.items():
        if names:
            return Finding.fail(reason, f"{', '.join(names)} {words}", _REMEDY, facts)
    if facts["errors"]:
        device, error = next(iter(facts["errors"].items()))
        sentence = f"{device} could not compute: {error}"
        return Finding.unknown("not_computed", sentence, "free the GPU's memory and run it again", facts)
    if split:
        sentence = f"{', '.join(split)} are of one model and compute different bits"
        return Finding.warn("sisters_differ", sentence, "run it again; compare with another node", facts)
    return Finding.passed("products_right", f"products are right ({', '.join(_names(found))})", facts)


def _names(devices: Iterable[dict[str, Any]]) -> list[str]:
    return [device["device"] for device in devices]


check = Check(
    **Check.parts_of(__name__),
    reads="torch on each GPU, or on the CPU if there is none",
    cost="seconds: torch is loaded, and computes on each GPU in turn",
    lane=torch_devices.LANE,
    deadline_s=180.0,
    options={
        "size": Option(4096, "rows of the matrices on a GPU", "ours: fills every SM of today's GPUs for milliseconds"),
        "repeats": Option(5, "products on each device", "ours"),
    },
)
