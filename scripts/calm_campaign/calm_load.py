"""Busy loops beside a campaign, which end with it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

_LOOP = "import os,time; parent, until = os.getppid(), time.monotonic() + float(__import__('sys').argv[1])\n"
_LOOP += "while time.monotonic() < until and os.getppid() == parent:\n    sum(range(100000))\n"
_AT_MOST_S = 2 * 3600


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run so many busy loops at normal priority; each ends with this process, and after two hours in any case."""
    children = [subprocess.Popen([sys.executable, "-c", _LOOP, str(_AT_MOST_S)]) for _ in range(loops)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()
