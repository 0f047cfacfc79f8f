"""Prometheus' own checker, for tests: it judges metrics, rules, and rules over series."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import slurm_required


def promtool(*args: str, cwd: Path | None = None, text: str = "") -> str:
    """What it says on both streams; fails where it is not content."""
    found = shutil.which("promtool", path=str(Path(sys.executable).parent)) or shutil.which("promtool")
    if found is None:
        message = "promtool is not installed: scripts/setup --dev takes it out of Debian's package prometheus"
        if slurm_required():
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    done = subprocess.run([found, *args], cwd=cwd, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
