"""Reads the numbers of this node's GPUs and the driver's version from the driver's files in /proc.

NVIDIA's driver asks the GPU for some of the values in these files, so reading a file may hang if a GPU is lost
(`nv_procfs_read_gpu_info` in its open kernel modules). A separate thread reads the files, once.
"""

from __future__ import annotations

import os
import re
import threading
from typing import Mapping, NamedTuple

DRIVER = "/proc/driver/nvidia/gpus"
WAIT_S = 0.5
"""The reading is waited for this long, once: it takes some milliseconds if nothing hangs."""
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)
_MAJOR = re.compile(r"^NVRM version: .{1,80}?\s(\d{3,4})\.\d", re.MULTILINE)
_ADDRESS = re.compile(r"\b[0-9a-f]{0,4}([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\b", re.IGNORECASE)
_MAX_CHARS = 8192


class DriverFacts(NamedTuple):
    """The values in the driver's files.

    Attributes:
        minors: PCI address (`gpu_address`) → number of the device file, in the order of the bus; empty if the
            driver does not name all GPUs.
        major: Major version of the driver; 0 if it is not known.
    """

    minors: Mapping[str, int] = {}
    major: int = 0


class GpuMinors:
    """Reads the driver's files in the background."""

    def __init__(self, folder: str = DRIVER) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._facts = DriverFacts()
        self._awaited = False

    def start(self) -> None:
        """Begin to read, at the first call."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()

    @property
    def facts(self) -> DriverFacts:
        """The values that were read; empty while the reading hangs. The first caller waits `WAIT_S` for them."""
        self.start()
        if not self._awaited and self._thread is not None:
            self._thread.join(WAIT_S)
            self._awaited = True
        return self._facts

    def _read(self) -> None:
        version = _MAJOR.search(_text(os.path.join(os.path.dirname(self._folder), "version")))
        self._facts = DriverFacts({}, int(version[1]) if version else 0)
        self._facts = self._facts._replace(minors=_minors(self._folder))


def gpu_address(text: str) -> str:
    """Return the first PCI address in a text, as the kernel writes it without the function (`0000:9b:00`); or empty."""
    match = _ADDRESS.search(text)
    return match[1].lower() if match else ""


def _minors(folder: str) -> dict[str, int]:
    found: dict[str, int] = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    for name in names:
        match = _MINOR.search(_text(os.path.join(folder, name, "information")))
        if match is None:
            return {}
        found[gpu_address(name) or name] = int(match[1])
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(_MAX_CHARS)
    except OSError:
        return ""
