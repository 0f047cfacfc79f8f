"""A file system stops answering on one node alone, and a rank there waits in the kernel: that is certain."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit  # type: ignore[import-not-found]
from silent_mount import silent_mount

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(300)]
Cluster = Callable[..., DevCluster]
READS = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from slurm_robust import progress
data, silent = Path(sys.argv[1]), Path(sys.argv[2])
rank = int(os.environ["SLURM_PROCID"])
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["SLURM_NTASKS"]))
for step in range(30):
    time.sleep(0.1)
    if step == 12 and os.environ["SLURMD_NODENAME"] == "n2":
        silent.touch()
    (data / str(rank)).read_bytes()
    dist.all_reduce(torch.ones(1000))
    progress.step(step)
dist.destroy_process_group()
"""


def test_a_mount_that_is_dead_on_one_node_costs_that_node_at_once(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """The node is left long before the patience of strong evidence, which D state alone is; a spare takes its place."""
    patience_s = 300.0
    dev = cluster(nodes=4, standby=0, supervise={"strong_patience_s": patience_s})
    silent, program = tmp_path / "silent", tmp_path / "program.py"
    program.write_text(READS)
    with silent_mount(tmp_path / "data", silent, dev.layout.slurm_conf, "n2") as data:
        words = f"-N3 -n3 {sys.executable} {program} {data} {silent} --resume #"
        job = submit(dev, nodes=4, command=f"srobust run {words}", sbatch=("--no-kill",))
        decided = job.hears("decided", 150)
        assert (decided["road"], decided["evict"]) == ("spare_in_allocation", ["n2"]), job.everything()
        assert f"{data} does not answer on n2, and answers on n" in decided["text"], job.everything()
        # What asked there and was killed ends now: Slurm does not wait for it any longer.
        silent.unlink()
        assert job.hears("relaunched", 60)["evicted"] == ["n2"], job.everything()
        took_s = decided["at_s"] - job.incident()["times"]["fault"]
        ended = job.ends(60)
    assert took_s < 0.5 * patience_s, job.everything()
    assert (ended.state, ended.restart_count) == ("COMPLETED", 0), job.everything()
