"""Which number has the GPU of a PCI address? That of its device file, `/dev/nvidiaN`: the driver's minor number.

It is the one number that a process's open files show without doubt. NVML's order is that of the bus, and Slurm's is
that of the records in gres.conf; both may differ from it. A GPU that has left the bus is still known by the number that
it had: nothing is forgotten while the service runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_robust.nodecheck.checks.gpu.xid import gpu_name
from slurm_robust.nodecheck.sources import small_files

_FOLDER = "proc/driver/nvidia/gpus"
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)
_MAX_BYTES = 8192


class GpuNumbers:
    """The numbers of this node's GPUs.

    Args:
        root: The folder that has /proc.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / _FOLDER
        self._numbers: dict[str, int] = {}

    def learn(self, numbers: Mapping[str, int]) -> None:
        """Take NVML's word: PCI address → minor number."""
        self._numbers.update({gpu_name(bus): number for bus, number in numbers.items() if bus})

    def of(self, addresses: Iterable[str]) -> tuple[int, ...]:
        """The numbers of these GPUs; empty where one of them is not known, which means any of the node's."""
        names = [gpu_name(address) for address in addresses]
        if any(name not in self._numbers for name in names):
            self._look()
        if any(name not in self._numbers for name in names):
            return ()
        return tuple(sorted({self._numbers[name] for name in names}))

    def missing(self) -> tuple[int, ...]:
        """The numbers of GPUs that were there, and that the driver does not have any more."""
        there = {gpu_name(name) for name in small_files.names(self._folder)}
        self._look()
        return tuple(sorted(number for name, number in self._numbers.items() if name not in there))

    def _look(self) -> None:
        """Read the driver's files; where they name no minor number, it is taken to count them by the bus."""
        there = {gpu_name(name): name for name in sorted(small_files.names(self._folder))}
        found = {
            name: _MINOR.search(small_files.read_text(self._folder / entry / "information", _MAX_BYTES))
            for name, entry in there.items()
        }
        self._numbers.update({name: int(match[1]) for name, match in found.items() if match is not None})
        if not any(found.values()) and set(there) >= set(self._numbers):
            self._numbers = {name: number for number, name in enumerate(sorted(there))}
