"""The machine in words: what the figures are figures of."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import lib


def describe() -> dict[str, Any]:
    """As the benchmarks describe it, with driver and GPUs."""
    return {
        **lib.machine(),
        "gpus": _lines("nvidia-smi", "--query-gpu=name,memory.total,pci.bus_id", "--format=csv,noheader"),
        "driver": _lines("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("; ")[0],
        "user": "root" if os.getuid() == 0 else "not root",
    }


def _lines(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        return f"no {argv[0]} here"
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return f"{argv[0]} does not answer within 20 s"
    said = done.stdout.strip() if done.returncode == 0 else (done.stderr or done.stdout).strip()
    return "; ".join(said.splitlines()) or f"{argv[0]} says nothing, exit code {done.returncode}"
