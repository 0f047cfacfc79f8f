"""Which number has the GPU of a PCI address? NVML's where it answers, else the driver's files: both go by the bus.

A GPU that has left the bus is still known by the number that it had: nothing is forgotten while the service runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_robust.nodecheck.checks.gpu.xid import gpu_name
from slurm_robust.nodecheck.sources import small_files

_FOLDER = "proc/driver/nvidia/gpus"


class GpuNumbers:
    """The numbers of this node's GPUs.

    Args:
        root: The folder that has /proc.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / _FOLDER
        self._numbers: dict[str, int] = {}
        self._from_nvml = False

    def learn(self, numbers: Mapping[str, int]) -> None:
        """Take NVML's word: PCI address → number."""
        told = {gpu_name(bus): number for bus, number in numbers.items() if bus}
        if set(told) - set(self._numbers) or not self._from_nvml:
            self._numbers = told or self._numbers
            self._from_nvml = bool(told)

    def of(self, addresses: Iterable[str]) -> tuple[int, ...]:
        """The numbers of these GPUs; empty where one of them is not known, which means all of the node."""
        names = [gpu_name(address) for address in addresses]
        if not self._from_nvml and any(name not in self._numbers for name in names):
            there = sorted(gpu_name(name) for name in small_files.names(self._folder))
            if set(there) >= set(self._numbers):
                self._numbers = {name: number for number, name in enumerate(there)}
        if any(name not in self._numbers for name in names):
            return ()
        return tuple(sorted({self._numbers[name] for name in names}))
