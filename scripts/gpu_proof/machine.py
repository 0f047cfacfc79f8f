"""The machine in words: what the figures are figures of."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata


def describe() -> dict[str, str]:
    """Name of a thing → its version or size."""
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB",
        "system": f"{platform.platform()}, Python {platform.python_version()}",
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "GPUs": _lines("nvidia-smi", "--query-gpu=name,memory.total,pci.bus_id", "--format=csv,noheader"),
        "Slurm": _first_line("sinfo", "--version"),
        "packages": ", ".join(
            f"{name} {_version(name)}" for name in ("torch", "nvidia-ml-py", "nvidia-nccl-cu12", "py-spy")
        ),
        "user": "root" if os.getuid() == 0 else "not root",
    }


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _lines(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        return f"no {argv[0]} here"
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return f"{argv[0]} does not answer within 20 s"
    said = done.stdout.strip() if done.returncode == 0 else (done.stderr or done.stdout).strip()
    return "; ".join(said.splitlines()) or f"{argv[0]} says nothing, exit code {done.returncode}"


def _first_line(*argv: str) -> str:
    return _lines(*argv).split("; ")[0]
