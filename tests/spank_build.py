"""Builds the SPANK plugin for tests, and writes its line of plugstack.conf."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import slurm_required

SPANK = Path(__file__).resolve().parents[1] / "spank"


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Type `make WORDS` in spank/, with everything that it makes in `folder`."""
    argv = ["make", "-s", "-C", str(SPANK), f"BUILD={folder}", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def need_compiler() -> None:
    """Skip, or fail where tests must not be skipped, without a compiler or Slurm's headers."""
    if shutil.which("make") and shutil.which("cc") and Path("/usr/include/slurm/spank.h").exists():
        return
    message = "nothing to build with: apt-get install gcc make libc6-dev libslurm-dev (scripts/setup --dev does)"
    if slurm_required():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def build(folder: Path) -> Path:
    """The plugin, built here."""
    need_compiler()
    done = make(folder / "objects")
    assert done.returncode == 0, done.stderr
    return Path(shutil.copy(folder / "objects" / "spank_robust.so", folder))


def line(plugin: Path, *arguments: str) -> str:
    """A line of plugstack.conf for it, with the srobust of these tests."""
    # Beside the interpreter that runs the tests: its folder need not be on PATH.
    command = shutil.which("srobust", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    assert command, "srobust is not installed beside this Python: scripts/setup --dev"
    return " ".join(
        [
            "optional",
            str(plugin),
            f"command={command}",
            f"python={SPANK}/python",
            f"exits={plugin.parent}/exits",
            *arguments,
        ]
    )
