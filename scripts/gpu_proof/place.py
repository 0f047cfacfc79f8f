"""Where a part runs: its folder, its deadline, and whether GPUs are real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SEARCH = os.pathsep.join(map(str, (ROOT, ROOT / "scripts", ROOT / "benchmarks", ROOT / "tests")))
"""PYTHONPATH of a part, and of what it starts."""


@dataclass(frozen=True)
class Place:
    """What a part is given.

    Attributes:
        folder: Its own; what it writes there is kept.
        deadline_s: When it is ended, by `time.monotonic()`.
        rehearsal: No GPU: a fake NVML and tensors on the CPU stand in.
    """

    folder: Path
    deadline_s: float
    rehearsal: bool

    @property
    def left_s(self) -> float:
        """Time that is left, seconds."""
        return self.deadline_s - time.monotonic()

    def run(self, argv: Sequence[str], limit_s: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command, for as long as the deadline allows.

        Raises:
            subprocess.TimeoutExpired: it took longer; it is killed.
        """
        limit_s = max(1.0, min(limit_s, self.left_s))
        full = {**os.environ, "PYTHONPATH": SEARCH, **env}
        return subprocess.run(argv, env=full, capture_output=True, text=True, timeout=limit_s, check=False)

    def checks(self, group: str, *words: str) -> list[dict[str, Any]]:
        """What the node checks of this group find in the full stage, as `srobust check --json` has it.

        Raises:
            RuntimeError: they gave no verdict; with what they said.
        """
        command = ("-m", "slurm_robust.nodecheck", *words, "--stage", "full", "--only", group, "--json")
        done = self.python(*command, limit_s=120)
        if done.returncode not in (0, 1, 3):
            raise RuntimeError(f"srobust check: exit code {done.returncode}: {done.stderr[-2000:]}")
        found: list[dict[str, Any]] = json.loads(done.stdout)["checks"]
        return found

    def python(self, *words: str, limit_s: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
        """The same with this Python."""
        return self.run([sys.executable, *words], limit_s, **env)
