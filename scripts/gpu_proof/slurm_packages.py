"""Slurm for a cluster on this machine: what is installed, or Debian's packages where root may install them."""

from __future__ import annotations

import os
import shutil
import subprocess

from gpu_proof.place import Place

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
_LIMIT_S = 90.0


def missing(place: Place) -> str:
    """Why there is no Slurm here; empty if there is one, which it installs if it can."""
    from slurm_robust.devcluster import machine  # noqa: PLC0415 (other parts need no Slurm)

    if machine.installed():
        return ""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return "Slurm is not installed, and not to be had: no apt-get here, or this user is not root"
    try:
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
            place.run(["apt-get", "-qq", *words], _LIMIT_S, DEBIAN_FRONTEND="noninteractive")
    except subprocess.TimeoutExpired:
        return f"Slurm is not installed, and apt-get did not end within {_LIMIT_S:.0f} s"
    return "" if machine.installed() else "Slurm is not installed, and apt-get could not install it"
