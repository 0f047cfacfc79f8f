"""Which file holds the site's configuration? A launch asks this before it loads the modules that read the file."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_PATH = Path("/etc/slurm_robust/robust.yaml")


def find(explicit: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the file that `config.load` reads, or None if the defaults hold."""
    if explicit:
        return Path(explicit)
    if named := os.environ.get("SROBUST_CONFIG"):
        return Path(named)
    try:
        return DEFAULT_PATH if DEFAULT_PATH.exists() else None
    except OSError:
        return DEFAULT_PATH  # who reads it says why it cannot be read
