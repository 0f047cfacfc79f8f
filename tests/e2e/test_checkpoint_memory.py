"""A training that saves through the Checkpointer is killed and relaunched: it goes on from its nodes' memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust import checkpoint
from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch, torch.distributed as dist
from train import rendezvous
from slurm_robust import progress
from slurm_robust.checkpoint import Checkpointer
rank, world, _ = rendezvous()
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer}
saver = Checkpointer("ckpt")
first = (saver.load_latest(state) or 0) + 1
source = saver.resumed.source or "nothing"
print(f"rank {rank} starts at {first} from {source}, by agent: {saver.link.by_agent}", flush=True)
for step in range(first, 13):
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    progress.step(step)
    assert saver.save(step, state)
    if rank == 1 and step == 8 and first == 1:
        os.kill(os.getpid(), signal.SIGKILL)
saver.close()
print(f"rank {rank} has saved {saver.last_sealed}, kept by {saver.backups}", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[DevCluster]:
    """Two nodes, no daemon: the restart is in place."""
    cluster = DevCluster.up(Spec(nodes=2))
    yield cluster
    cluster.down()


def test_a_killed_training_goes_on_from_memory(two_nodes: DevCluster, tmp_path: Path) -> None:
    """SIGKILL of a rank right after a save: its node's agent holds the copy, and the relaunch loads it, step 8."""
    (tmp_path / "program.py").write_text(PROGRAM)
    script = (
        "#!/bin/bash\nunset OMP_NUM_THREADS\n"
        f"{sys.executable} -m slurm_robust.cli.main run --robust-checkpoint-dir=ckpt -N2 -n2 "
        f"{sys.executable} program.py {ROOT / 'examples'}\n"
    )
    (tmp_path / "job.sh").write_text(script)
    env = {**os.environ, **two_nodes.env, "PYTHONPATH": str(ROOT)}
    submit = ["sbatch", "-N2", "-n2", "--ntasks-per-node=1", "--output=out", "job.sh"]
    subprocess.run(submit, cwd=tmp_path, env=env, check=True, capture_output=True)
    out = tmp_path / "out"
    wait_until(lambda: out.exists() and out.read_text().count("has saved 12") == 2, 150, "both ranks' last save")
    assert out.read_text().count("has saved 12, kept by ((1,), (0,))") == 2  # each on the other's node
    told = re.findall(r"rank (\d) starts at (\d+) from (\w+), by agent: (\w+)", out.read_text())
    assert sorted(told[:2]) == [("0", "1", "nothing", "True"), ("1", "1", "nothing", "True")], out.read_text()
    assert sorted(told[2:]) == [("0", "9", "memory", "True"), ("1", "9", "memory", "True")], out.read_text()
    assert checkpoint.latest(tmp_path / "ckpt", deep=True).step == 12
