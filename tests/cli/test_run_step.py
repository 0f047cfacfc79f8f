"""The command `srobust run`, up to the launcher that it becomes; a shell stands in for srun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = """
import sys
sys.modules["slurm_robust.supervise.launch.launcher"] = None
from slurm_robust.cli import run_step
sys.exit(run_step.run(sys.argv[1:]))
"""


@pytest.mark.parametrize("option", ["--robust=observe", "--robust-warm"])
def test_a_launcher_that_cannot_be_loaded_leaves_the_command_alone(tmp_path: Path, option: str) -> None:
    """Whether its srun was started early or not: it runs once, and its exit code is ours."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\necho once\nsleep 0.2\nexit 9\n")
    srun.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    env |= {"SLURM_JOB_ID": "5", "SLURM_CLUSTER_NAME": f"test-{os.getpid()}-{tmp_path.name}"}
    words = [sys.executable, "-c", BROKEN, f"--robust-folder={tmp_path}", option, "true"]
    process = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stdout) == (9, "once\n"), process.stderr
    assert "not supervised: " in process.stderr
