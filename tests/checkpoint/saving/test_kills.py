"""Kill -9 at the stages of a save."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_kills_at_every_stage() -> None:
    """A part of a lap of scripts/kill_saves.py; hundreds are its own run."""
    script = [sys.executable, str(ROOT / "scripts" / "kill_saves.py"), "--rounds", "10", "--seed", "11"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stdout
    assert "10 kills" in done.stdout
