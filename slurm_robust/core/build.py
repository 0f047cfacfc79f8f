"""Which build of the package is this? Its version may stay the same from one commit to the next. Standard library only.

The build is a digest of the package's own files, so that it is the same for a clone, a tarball and what `pip install`
made of either, and differs where an upgrade was left half done.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

DIGITS = 8


def of(package: Path) -> str:
    """Return the build of the package in this folder; `unknown` if it cannot be read."""
    digest = hashlib.sha256()
    try:
        for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).parts):
            digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    except OSError:
        return "unknown"
    return digest.hexdigest()[:DIGITS]


@functools.lru_cache(maxsize=1)
def build() -> str:
    """Return the build that this process runs, as it was when this was first asked; about 50 ms of work."""
    return of(Path(__file__).parents[1])
