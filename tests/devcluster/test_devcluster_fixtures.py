from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(("variables", "outcome"), [({}, "1 skipped"), ({"CI": "1"}, "1 error")])
def test_without_slurm_tests_are_skipped_but_never_in_ci(
    tmp_path: Path, variables: dict[str, str], outcome: str
) -> None:
    """A developer without Slurm sees skips with a message; where CI or SROBUST_REQUIRE_SLURM is set it is a failure."""
    (tmp_path / "no_slurm.py").write_text(
        "from slurm_robust.devcluster import machine\nmachine.installed = lambda: False\n"
    )
    env = {key: value for key, value in os.environ.items() if key not in ("CI", "SROBUST_REQUIRE_SLURM")}
    env |= {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"} | variables
    words = [
        "-m",
        "pytest",
        "-p",
        "no_slurm",
        "-p",
        "no:cacheprovider",
        "tests/devcluster/test_cluster.py",
        "-k",
        "six",
    ]
    done = subprocess.run(
        [sys.executable, *words], env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert outcome in done.stdout, done.stdout
    assert "apt-get install slurmctld" in done.stdout
