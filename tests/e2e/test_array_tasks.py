"""Tasks of an array end as their programs end: by an exit code that tells the script something, and nobody else."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]
PROGRAM = """
import os, sys, time
from slurm_robust import progress
task = os.environ["SLURM_ARRAY_TASK_ID"]
with open(f"starts-{task}", "a") as starts:
    starts.write("x")
for step in range(20):
    progress.step(step)
    time.sleep(0.1)
if task == "2":
    while not os.path.exists("ended-1"):
        time.sleep(0.1)
print("trained", flush=True)
sys.exit(3 if task == "1" else 0)
"""


def ended(cluster: DevCluster, task: str) -> list[str]:
    """State, exit code and requeues of an array's task once it has ended; empty until then."""
    shown = cluster.run(["scontrol", "-o", "show", "job", task]).stdout
    over = not re.search(r"JobState=(?:PENDING|RUNNING|COMPLETING)", shown)
    return sorted(re.findall(r"\b(?:JobState|ExitCode|Restarts)=\S+", shown)) if over else []


def test_an_array_task_that_ends_with_3_after_its_training_is_failed_and_not_run_again(
    cluster: Cluster, plugstack: Path, tmp_path: Path
) -> None:
    """FAILED 3:0, started once, under `srobust run` and `sbatch --robust`; the other task trains on and ends well.

    The code says nothing of a node: whoever wrote the program knows what it means.
    """
    dev = cluster(standby=0, nodes=2, slurm_conf_extra=f"PlugStackConfig={plugstack}")
    (tmp_path / "program.py").write_text(PROGRAM)
    arrays = {}
    for way, (launch, options) in {"run": ("srobust run", ()), "robust": ("srun", ("--robust",))}.items():
        folder = tmp_path / way
        folder.mkdir()
        folder.chmod(0o777)
        text = f"#!/bin/bash\n{launch} {sys.executable} {tmp_path}/program.py\n"
        (folder / "job.sh").write_text(text)
        words = ["sbatch", "--parsable", "--array=1-2", "--requeue", "--open-mode=append", "-N1", "-n1", *options]
        done = dev.run([*words, f"--output={folder}/%a.out", f"--chdir={folder}", str(folder / "job.sh")])
        arrays[way] = done.stdout.strip().split(";")[0]
    found = {}
    for way, array in arrays.items():
        folder = tmp_path / way
        found[way] = [wait_until(lambda job=f"{array}_1": ended(dev, job), 90, f"the end of {array}_1")]
        (folder / "ended-1").touch()
        found[way].append(wait_until(lambda job=f"{array}_2": ended(dev, job), 90, f"the end of {array}_2"))
    outputs = {str(path): path.read_text() for path in tmp_path.glob("*/*.out")}
    for way, ends in found.items():
        assert ends[0] == ["ExitCode=3:0", "JobState=FAILED", "Restarts=0"], outputs
        assert ends[1] == ["ExitCode=0:0", "JobState=COMPLETED", "Restarts=0"], outputs
        assert [(tmp_path / way / f"starts-{task}").read_text() for task in (1, 2)] == ["x", "x"], outputs
        assert all(outputs[f"{tmp_path}/{way}/{task}.out"].count("trained") == 1 for task in (1, 2)), outputs
        # Both were supervised: what was not done was left undone on purpose.
        assert len(list((tmp_path / way).glob("slurm-robust-*/story.jsonl"))) == 2, sorted(tmp_path.glob("*/*"))
    assert not dev.run(["squeue", "-h"]).stdout.strip(), outputs
    shown = dev.run(["sinfo", "-h", "-N", "-o", "%N %E"]).stdout
    assert all(line.endswith(" none") for line in shown.splitlines()), shown
