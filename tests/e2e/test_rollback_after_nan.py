"""A training whose loss becomes NaN goes back to its last healthy checkpoint, and leaves the bad batches out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import quick_torch, wait_until

from slurm_robust import checkpoint
from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os
import torch
from slurm_robust import progress
from slurm_robust.checkpoint import Checkpointer, skipped_batches
skipped = skipped_batches()
state = {"weight": torch.ones(8), "read": []}
saver = Checkpointer("ckpt", keep=2)
first = (saver.load_latest(state) or 0) + 1
chosen = os.path.basename(os.environ["SROBUST_RESUME_PATH"])
print(f"starts at {first}, exported {chosen!r}, leaves out {skipped}", flush=True)
for step in range(first, 401):
    batch = skipped.batch(step)
    state["weight"] += float("nan") if batch in (231, 232, 233) else 0.001
    state["read"].append(batch)
    loss = float(state["weight"].mean())
    progress.step(step, loss=loss)
    saver.observe(step, loss=loss)
    if step % 50 == 0:
        saver.save(step, state)
        saver.wait()
    if loss != loss and step > 232:
        raise FloatingPointError(f"loss is {loss}")
saver.close()
print(f"ends at {step} with {loss:.3f}, read {len(state['read'])} batches, the last {batch}", flush=True)
"""


@pytest.fixture(scope="module")
def node() -> Iterator[DevCluster]:
    """One node, no daemon: the restart is in place."""
    cluster = DevCluster.up(Spec(nodes=1, robust_yaml={"ladder": {"tests": []}}))
    yield cluster
    cluster.down()


def test_a_training_whose_loss_is_nan_goes_back(node: DevCluster, tmp_path: Path) -> None:
    """The checkpoint of step 100 is the last with a hundred good steps after it; memory and files hold newer ones.

    The spell is steps 231 to 233, so batches 230 to 233 are left out, and the last step reads batch 404.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    run = f"{sys.executable} -m slurm_robust.cli.main run --robust-checkpoint-dir=ckpt -n1 {sys.executable} program.py"
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{run}\n")
    env = {**os.environ, **node.env, "PYTHONPATH": quick_torch(ROOT)}
    subprocess.run(["sbatch", "-n1", "--output=out", "job.sh"], cwd=tmp_path, env=env, check=True, capture_output=True)
    out = tmp_path / "out"
    wait_until(lambda: out.exists() and "ends at" in out.read_text(), 100, "the end")
    text = out.read_text()
    starts = [line for line in text.splitlines() if line.startswith(("starts", "ends"))]
    assert starts[0] == "starts at 1, exported '', leaves out ", text
    assert starts[1].startswith("starts at 101, exported 'step-00000100-"), text
    assert starts[1].endswith("leaves out 230-233"), text
    assert starts[2:] == ["ends at 400 with 1.400, read 400 batches, the last 404"], text
    assert checkpoint.latest(tmp_path / "ckpt", deep=True).step == 400
    assert "back to step 100, without batches 230 to 233" in text
