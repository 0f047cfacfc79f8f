"""`srobust diagnose JOBID` on a real Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster


@pytest.mark.slurm
@pytest.mark.timeout(120)
def test_an_arrays_task_is_diagnosed_by_its_own_files(devcluster: DevCluster, tmp_path: Path) -> None:
    """After its end, from another folder, with patterns in both names; the other task's file is not read."""
    out, err = f"{tmp_path}/%x-%A_%a.out", f"{tmp_path}/%A-%3a.err"
    wrap = "echo \"KeyError: 'x$SLURM_ARRAY_TASK_ID'\" >&2; exit 1"
    submit = ["sbatch", "--parsable", "-a", "3-4", "-J", "train", "-o", out, "-e", err, "--wrap", wrap]
    array = devcluster.run(submit).stdout.strip()
    state = ["squeue", "-h", "-t", "all", "-r", "-j", array, "-o", "%T"]
    wait_until(lambda: devcluster.run(state).stdout.split() == ["FAILED", "FAILED"], 60, "the end of both tasks")
    start = "from slurm_robust.cli.main import cli; cli()"
    command = [sys.executable, "-c", start, "diagnose", f"{array}_4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=devcluster.env, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["read"] == [f"{tmp_path}/train-{array}_4.out", f"{tmp_path}/{array}-004.err"]
    assert (told["root"]["text"], told["root"]["line"]) == ("KeyError: 'x4'", 1)
