"""The SPANK plugin's whole story: an untouched script under `sbatch --robust` lives through a stopped rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit  # type: ignore[import-not-found]

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]


def test_an_untouched_script_lives_through_a_stopped_rank(cluster: Cluster, submit: Submit, plugstack: Path) -> None:
    """`sbatch --robust train.sbatch` with a plain srun in it: suspected, named, requeued without the node, resumed."""
    # No node is lost here; Slurm 24.11 takes a node for lost that is three seconds late on a busy machine.
    dev = cluster(slurm_conf_extra=f"PlugStackConfig={plugstack}", slurmd_timeout_s=10)
    job = submit(
        dev,
        command="srun",
        fault={"kind": "stop", "rank": 1, "step": 30},
        sbatch=("--robust", "--robust-checkpoint-dir=ck"),
    )
    suspect = job.hears("suspect", 90)["node"]
    job.hears("claimed")
    resumed = job.hears("resumed", 90)
    assert resumed["step"] > 25
    running = job.job()
    assert suspect not in running.nodes
    assert running.restart_count == 1
    ended = job.ends(120)
    assert (ended.state, ended.exit_code) == ("COMPLETED", "0:0")
    assert job.output().count("resumed from step ") >= 1, job.everything()
    job.assert_clean_slurm()
