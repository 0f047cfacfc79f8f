"""Small C libraries that break something below a program: they are preloaded into it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCES = Path(__file__).with_name("fault_libraries")


def compiled(folder: Path, name: str) -> Path:
    """A shared library of one C file; the test is skipped where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, for the fault below the test: apt-get install gcc libc6-dev")
    made = folder / f"{name}.so"
    source = _SOURCES / f"{name}.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", str(made), str(source), "-ldl"], check=True)
    return made
