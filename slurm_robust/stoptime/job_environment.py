"""Reads the NCCL variables that a job's own ranks have on this node. The agent loads it: standard library.

`srobust test --job` is typed in a shell that seldom has these variables, and with other interfaces the tests would test
another network than the one that the training used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PREFIXES = ("NCCL_", "TORCH_NCCL_", "UCX_", "GLOO_", "FI_", "CUDA_DEVICE_MAX_CONNECTIONS")
_MAX_BYTES = 1 << 20


def of_ranks(proc: Path, own: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables of the job's first rank on this node; None if there is no rank that may be read.

    Args:
        proc: /proc.
        own: This process's environment, which tells its job, step and node.
    """
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if folder.stat().st_uid != os.geteuid():
                continue  # Other users may give their processes any job's name.
            with (folder / "environ").open("rb") as file:
                text = file.read(_MAX_BYTES)
        except OSError:
            continue
        environ = _parsed(text)
        if _is_rank(environ, own):
            # Ranks of torchrun come before the process that started them; then Slurm's order.
            found.append(("RANK" not in environ, _number(environ["SLURM_PROCID"]), int(folder.name), environ))
    if not found:
        return None
    environ = min(found, key=lambda rank: rank[:3])[3]
    return {name: value for name, value in environ.items() if name.startswith(PREFIXES)}


def merged(base: Mapping[str, str], ranks: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of the tests' ranks: `base`, with these variables from the job's ranks, if any."""
    if ranks is None:
        return dict(base)
    return {name: value for name, value in base.items() if not name.startswith(PREFIXES)} | dict(ranks)


def _parsed(text: bytes) -> dict[str, str]:
    pairs = (part.decode("utf-8", "replace").partition("=") for part in text.split(b"\0"))
    return {name: value for name, _, value in pairs if name}


def _is_rank(environ: Mapping[str, str], own: Mapping[str, str]) -> bool:
    same = all(environ.get(name) == own.get(name) for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"))
    step = environ.get("SLURM_STEP_ID", "")
    return (
        same
        and "SLURM_PROCID" in environ
        and step.isdigit()
        and step != own.get("SLURM_STEP_ID")
        and "SROBUST_WATCH" not in environ
    )


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 1 << 30
