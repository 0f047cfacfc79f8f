"""Lists the figures of each GPU model, so that a board below its model's figures is seen.

The list has only figures that hold for every board of the model, so no NVLink bridges, which a site may not have
bought. A model that is not listed has no expectations, and no check finds fault with it. A site lays its own figures
over these, or adds models: `nodecheck.gpu_profiles`. Sources: NVIDIA's data sheets and architecture papers of each
product (links, PCIe, memory, peak rates); the speed of a link is the one that the driver itself reports. The figures
for copies and products in the full stage (`*_gbps`, `bf16_tflops`) are ours: about 60 % of the data sheet's figures, so
that a healthy board in a cramped system passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_robust.nodecheck.engine.registry import CheckError

_Types = tuple[type, ...]
_WHOLE: _Types = (int,)
_NUMBER: _Types = (int, float)
_FLAG: _Types = (bool,)
_FIGURES: Mapping[str, tuple[_Types, str]] = {
    "nvlinks": (_WHOLE, "NVLinks that are up when several such boards share a node"),
    "nvlink_mbps": (_NUMBER, "speed of one link and direction in MB/s, as NVML reports it"),
    "pcie_generation": (_WHOLE, "PCIe generation of the board"),
    "pcie_width": (_WHOLE, "PCIe lanes of the board"),
    "memory_mib": (_WHOLE, "the least memory in MiB that NVML reports"),
    "fabric": (_FLAG, "true: needs Fabric Manager where a node has several"),
    "coherent": (
        _FLAG,
        "true: the board's memory belongs to the kernel too, so that its use says nothing of processes",
    ),
    "ecc": (_FLAG, "true: ECC is on as delivered"),
    "power_w": (_WHOLE, "power limit as delivered in W"),
    "host_to_device_gbps": (_NUMBER, "GB/s that a copy from pinned host memory must reach (full stage)"),
    "device_to_device_gbps": (_NUMBER, "GB/s that a copy to another GPU must reach (full stage)"),
    "bf16_tflops": (_NUMBER, "TFLOP/s that a bfloat16 product must reach (full stage)"),
}
KEYS: Mapping[str, _Types] = {key: types for key, (types, _) in _FIGURES.items()}
MEANING: Mapping[str, str] = {key: meaning for key, (_, meaning) in _FIGURES.items()}

Profile = Mapping[str, Any]

_V100 = {"pcie_generation": 3, "pcie_width": 16, "ecc": True, "host_to_device_gbps": 7.0}
_V100_SXM = {**_V100, "nvlinks": 6, "nvlink_mbps": 25781}
_A100 = {"pcie_generation": 4, "pcie_width": 16, "ecc": True, "host_to_device_gbps": 15.0, "bf16_tflops": 180}
_A100_SXM = {**_A100, "nvlinks": 12, "nvlink_mbps": 25781, "device_to_device_gbps": 150.0}
_H100 = {"pcie_generation": 5, "pcie_width": 16, "ecc": True, "host_to_device_gbps": 30.0}
_H100_SXM = {
    **_H100,
    "nvlinks": 18,
    "nvlink_mbps": 26562,
    "fabric": True,
    "bf16_tflops": 550,
    "device_to_device_gbps": 200.0,
}
_GRACE = {"ecc": True, "coherent": True, "host_to_device_gbps": 100.0}
_B200 = {**_H100, "nvlinks": 18, "nvlink_mbps": 53125, "fabric": True, "bf16_tflops": 1200}
_B200 |= {"device_to_device_gbps": 400.0}
_ADA = {"pcie_generation": 4, "pcie_width": 16, "host_to_device_gbps": 12.0, "nvlinks": 0}
_GA102 = {"pcie_generation": 4, "pcie_width": 16, "host_to_device_gbps": 12.0}

PROFILES: Mapping[str, Profile] = {
    "Tesla T4": {"pcie_generation": 3, "pcie_width": 16, "memory_mib": 14500, "nvlinks": 0},
    "Tesla V100-SXM2-16GB": {**_V100_SXM, "memory_mib": 15900},
    "Tesla V100-SXM2-32GB": {**_V100_SXM, "memory_mib": 32000},
    "Tesla V100-SXM3-32GB": {**_V100_SXM, "memory_mib": 32000},
    "Tesla V100-PCIE-16GB": {**_V100, "memory_mib": 15900, "nvlinks": 0},
    "Tesla V100-PCIE-32GB": {**_V100, "memory_mib": 32000, "nvlinks": 0},
    "A100-SXM4-40GB": {**_A100_SXM, "memory_mib": 40000},
    "A100-SXM4-80GB": {**_A100_SXM, "memory_mib": 80000},
    "A100-SXM-64GB": {**_A100_SXM, "memory_mib": 64000},
    "A100-PCIE-40GB": {**_A100, "memory_mib": 40000},
    "A100 80GB PCIe": {**_A100, "memory_mib": 80000},
    "A800-SXM4-80GB": {**_A100_SXM, "nvlinks": 8, "memory_mib": 80000, "device_to_device_gbps": 100.0},
    "A30": {"pcie_generation": 4, "pcie_width": 16, "memory_mib": 24000, "ecc": True, "bf16_tflops": 90},
    "A10": {**_GA102, "memory_mib": 22000, "nvlinks": 0, "bf16_tflops": 60},
    "A10G": {**_GA102, "memory_mib": 22000, "nvlinks": 0, "bf16_tflops": 40},
    "A40": {**_GA102, "memory_mib": 44000, "bf16_tflops": 80},
    "RTX A6000": {**_GA102, "memory_mib": 47000, "bf16_tflops": 80},
    "L4": {**_ADA, "memory_mib": 22500, "bf16_tflops": 45},
    "L40": {**_ADA, "memory_mib": 44000, "bf16_tflops": 100},
    "L40S": {**_ADA, "memory_mib": 44000, "bf16_tflops": 180},
    "RTX 6000 Ada Generation": {**_ADA, "memory_mib": 47000, "bf16_tflops": 150},
    "H100 80GB HBM3": {**_H100_SXM, "memory_mib": 80000},
    "H100 PCIe": {**_H100, "memory_mib": 80000, "bf16_tflops": 350},
    "H100 NVL": {**_H100, "memory_mib": 94000, "bf16_tflops": 400},
    "H800": {**_H100_SXM, "nvlinks": 8, "memory_mib": 80000, "device_to_device_gbps": 100.0},
    "H20": {**_H100_SXM, "memory_mib": 95000, "bf16_tflops": 85},
    "H200": {**_H100_SXM, "memory_mib": 140000},
    "H200 NVL": {**_H100, "memory_mib": 140000, "bf16_tflops": 450},
    "GH200 120GB": {**_GRACE, "memory_mib": 95000, "bf16_tflops": 550},
    "GH200 480GB": {**_GRACE, "memory_mib": 95000, "bf16_tflops": 550},
    "GH200 144G HBM3e": {**_GRACE, "memory_mib": 140000, "bf16_tflops": 550},
    "B200": {**_B200, "memory_mib": 178000},
    "B300 SXM6 AC": {**_B200, "memory_mib": 265000},
    "GB200": {**_GRACE, "nvlinks": 18, "nvlink_mbps": 53125, "fabric": True, "memory_mib": 180000, "bf16_tflops": 1300},
    "GB300": {**_GRACE, "nvlinks": 18, "nvlink_mbps": 53125, "fabric": True, "memory_mib": 265000, "bf16_tflops": 1300},
}
"""The figures by NVML's product name, without the `NVIDIA ` that newer drivers put before it."""


def plain(model: str) -> str:
    """Return a product name without its maker's."""
    return " ".join(model.split()).removeprefix("NVIDIA ")


def of(model: str, site: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Return the figures of this model: ours, overridden by the site's; empty for an unknown model."""
    name = plain(model)
    expected = dict(PROFILES.get(name, {}))
    for theirs, figures in (site or {}).items():
        if plain(theirs) == name:
            expected.update(figures)
    return expected


def validate(site: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse figures that no profile has.

    Raises:
        CheckError: a key that does not exist, or a value of the wrong type or below zero; says where.
    """
    for model, figures in site.items():
        for key, value in figures.items():
            where = f"nodecheck.gpu_profiles.{model}.{key}"
            if key not in KEYS:
                raise CheckError(f"{where}: no such key (there are: {', '.join(KEYS)})")
            wrong = isinstance(value, bool) is not (KEYS[key] == (bool,))
            if wrong or not isinstance(value, KEYS[key]) or value < 0:  # type: ignore[operator]
                raise CheckError(
                    f"{where}: {value!r} is no {' or '.join(kind.__name__ for kind in KEYS[key])} from 0 up"
                )
