"""Reads PCI functions: their addresses, config space, link capabilities, and which of them are GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import small_files

DEVICES = "/sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")  # PCI classes of VGA and 3D controllers
_EXPRESS, _ACS = 0x10, 0x0D
_CONFIG_BYTES = 4096
_ENOUGH = 96
"""Capabilities of one device; a longer list runs in a circle."""


def gpus(context: Context) -> Iterator[Path]:
    """Yield the folders of NVIDIA's GPUs."""
    for device in context.path(DEVICES).glob("*"):
        is_gpu = small_files.text(device / "class", 16).startswith(_GPU_CLASSES)
        if is_gpu and small_files.text(device / "vendor", 16) == _NVIDIA:
            yield device


def _word(config: bytes, at: int) -> int:
    return int.from_bytes(config[at : at + 2], "little")


def port_type(config: bytes) -> int:
    """Return the kind of a PCIe port (PCI Express Capabilities Register, bits 4–7); -1 if the space does not say."""
    if len(config) < 64 or not config[6] & 0x10:
        return -1
    at = config[0x34] & 0xFC
    for _ in range(_ENOUGH):
        if at < 64 or at + 4 > len(config):
            return -1
        if config[at] == _EXPRESS:
            return _word(config, at + 2) >> 4 & 0xF
        at = config[at + 1] & 0xFC
    return -1


def acs_control(config: bytes) -> int | None:
    """Return the Access Control Services register; None if there is none, or only root may read so far."""
    at = 0x100
    for _ in range(_ENOUGH):
        if at < 0x100 or at + 8 > len(config):
            return None
        header = int.from_bytes(config[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == _ACS:
            return _word(config, at + 6)
        at = header >> 20 & 0xFFC
    return None


def read_config(folder: Path) -> bytes:
    """Return a device's config space; empty if it cannot be read."""
    try:
        with (folder / "config").open("rb") as file:
            return file.read(_CONFIG_BYTES)
    except OSError:
        return b""
