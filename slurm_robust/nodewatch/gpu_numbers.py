"""Which number has the GPU of a PCI address?

The number of its device file, `/dev/nvidiaN`: the driver's minor number. Only this number can be seen without doubt in
a process's open files. NVML's order is that of the bus, and Slurm's is that of the records in gres.conf; both may
differ from the driver's. A GPU that has left the bus keeps its number: numbers are not forgotten within a boot.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.checks.gpu.xid import gpu_name
from slurm_robust.nodecheck.sources import small_files

_FOLDER = "proc/driver/nvidia/gpus"
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)
_MAX_BYTES = 8192
_MOST = 64


class GpuNumbers:
    """The numbers of this node's GPUs. It asks the driver nothing that may hang: a child does (`driver_numbers`).

    Args:
        root: The folder that has /proc.
        kept: The `kept` of an earlier start in this boot; anything else counts as none.
    """

    def __init__(self, root: Path, kept: Mapping[str, Any] | None = None) -> None:
        self._folder = root / _FOLDER
        numbers = [(bus, number) for bus, number in (kept or {}).items() if type(number) is int]
        self._numbers: dict[str, int] = dict(numbers[:_MOST])

    @property
    def kept(self) -> dict[str, int]:
        """The known numbers for the next start; plain JSON."""
        return dict(self._numbers)

    def learn(self, numbers: Mapping[str, int], *, guessed: bool = False) -> None:
        """Take PCI address → minor number; take guessed numbers only if every known GPU is among them."""
        named = {gpu_name(bus): number for bus, number in numbers.items() if bus}
        if not guessed or set(named) >= set(self._numbers):
            self._numbers.update(named)

    def of(self, addresses: Iterable[str]) -> tuple[int, ...]:
        """Return the numbers of these GPUs; empty if one of them is not known, which means any of the node's."""
        names = [gpu_name(address) for address in addresses]
        if any(name not in self._numbers for name in names):
            return ()
        return tuple(sorted({self._numbers[name] for name in names}))

    def missing(self) -> frozenset[str]:
        """Return the PCI addresses of GPUs that were there before and that the driver no longer has."""
        # The names are the driver's own list; only the files' contents are asked of the GPU.
        there = {gpu_name(name) for name in small_files.names(self._folder)}
        return frozenset(self._numbers.keys() - there)


def driver_numbers(root: Path, wait_s: float = 2.0) -> tuple[dict[str, int], bool]:
    """Return PCI address → minor number by the driver's files; empty if the files are not read after `wait_s`.

    Reading a file may hang if a GPU is lost, so a thread does it; while the thread hangs, this process cannot end.

    Returns:
        The numbers, and whether they are guessed: if no file names a number, the driver is assumed to count by the bus.
    """
    found: list[tuple[dict[str, int], bool]] = []
    reading = threading.Thread(target=lambda: found.append(_read(root)), daemon=True)
    reading.start()
    reading.join(wait_s)
    return found[0] if found else ({}, False)


def _read(root: Path) -> tuple[dict[str, int], bool]:
    names = sorted(small_files.names(root / _FOLDER))
    found = {
        name: _MINOR.search(small_files.read_text(root / _FOLDER / name / "information", _MAX_BYTES)) for name in names
    }
    if any(found.values()):
        return {name: int(match[1]) for name, match in found.items() if match is not None}, False
    return {name: number for number, name in enumerate(names)}, True
