"""A site that lets Slurm hold jobs whose launch failed: one that our prolog refused goes on, a person's hold stays."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = pytest.mark.slurm

XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[Scene]:
    """Three nodes with the project's prolog, without `nohold_on_prolog_fail`, and a requeue that waits 11 s."""
    with tempfile.TemporaryDirectory(prefix="srobust-held-") as folder:
        Path(folder).chmod(0o755)
        directory = Path(folder) / "c"
        conf = "SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=1\n"
        conf += f"AuthInfo=socket={directory}/munge/socket,cred_expire=10\n"
        spec = Spec(nodes=3, gpus_per_node=1, kill_wait_s=2, directory=directory, slurm_conf_extra=conf)
        cluster = DevCluster.up(spec)
        scene = Scene(cluster, tmp_path / "state")
        yield scene
        scene.stop()
        cluster.down()


def test_refused_job_is_released_and_runs_elsewhere(holding: Scene) -> None:
    """Held by Slurm, let go by the daemon, on other nodes after Slurm's own delay; the held one beside it stays."""
    scene = holding
    scene.cluster.add_kmsg("n1", XID_79)
    scene.start()
    wait_until(lambda: "srobust-drain-permit" in scene.node("n1").comment, 20, "the daemon gives a drain permit")
    theirs = scene.submit("-H", "-N1", script="sleep 300")
    job = scene.submit("-N2", "--exclusive", script="sleep 300")
    wait_until(lambda: "launch failed" in scene.job(job).reason, 30, "Slurm holds the job", poll_s=0.02)
    after = scene.running(job, restart=1, timeout_s=60)
    assert set(after.nodes) == {"n2", "n3"}
    node = scene.node("n1")
    assert node.drained
    assert node.reason.startswith("srobust: XID 79")
    assert node.reason.endswith(f"[job {job}]")
    assert (scene.job(theirs).priority, scene.job(theirs).reason) == (0, "JobHeldUser")
    assert scene.log.read_text().count("action.release_job:") == 1
