"""A slurmctld that starts without its saved state, as `slurmctld -c` does, on a real Slurm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.daemon.api.needs import needs
from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = [pytest.mark.slurm, pytest.mark.variant, pytest.mark.timeout(120)]


def test_trainings_that_slurmctld_forgot_are_told(
    devcluster_factory: Callable[[Spec], DevCluster], tmp_path: Path
) -> None:
    """Without accounting: the job ran a moment ago, and Slurm would show its end for minutes."""
    cluster = devcluster_factory(Spec(nodes=2, gpus_per_node=0, prolog=False))
    scene = Scene(cluster, tmp_path / "state")
    scene.start()
    try:
        job = scene.submit("-N1", "--exclusive")
        scene.watched(job)
        path = scene.state_dir / "state.json"
        wait_until(lambda: path.exists() and json.loads(path.read_text())["jobs"], 20, "the daemon knows the training")
        cluster.kill_slurmctld()
        shutil.rmtree(cluster.layout.state / "slurmctld")
        (cluster.layout.state / "slurmctld").mkdir()
        cluster.start_slurmctld()
        wait_until(lambda: json.loads(path.read_text())["lost_jobs"], 60, f"it is told\n{scene.tail()}")
        state = json.loads(path.read_text())
        said = [sentence for sentence in needs(state, state["at_s"]) if "lost" in sentence]
        assert said[0].startswith(f"Slurm has lost 1 running training (job {job} of root)")
        assert "training.vanished" in scene.log.read_text()
    finally:
        scene.stop()
