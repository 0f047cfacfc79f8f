"""The daemon without root: an account that has no right but Slurm's Administrator level in the accounting."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounting_tools import need_accounting
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.devcluster.machine import command

pytestmark = [pytest.mark.slurm, pytest.mark.variant]

COMMANDS = ("scontrol", "squeue", "sinfo", "sacct", "scancel", "sbatch")


@pytest.fixture
def administered() -> Iterator[Scene]:
    """A cluster with accounting in which `nobody` is an administrator; root has no part in what the daemon asks."""
    need_accounting()
    # pytest's own folders are closed to others, and `nobody` reads the cluster's slurm.conf.
    with tempfile.TemporaryDirectory(prefix="dc-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        cluster = DevCluster.up(Spec(nodes=4, directory=folder / "c", accounting=True, prolog=False, standby=1))
        try:
            cluster.run(["sacctmgr", "-i", "add", "account", "site"])
            cluster.run(["sacctmgr", "-i", "add", "user", "nobody", "account=site", "adminlevel=Administrator"])
            cluster.run(["sacctmgr", "-i", "add", "user", "root", "account=site"])
            yield Scene(cluster, folder / "state")
        finally:
            cluster.down()


def as_nobody(folder: Path) -> str:
    """Return a folder in which each of Slurm's commands runs as nobody; nobody may be unable to run this Python."""
    folder.mkdir()
    for name in COMMANDS:
        script = folder / name
        drop = "setpriv --reuid=nobody --regid=nogroup --clear-groups"
        script.write_text(f'#!/bin/sh\ncd / && exec {drop} {command(name)} "$@"\n')
        script.chmod(0o755)
    return str(folder)


def test_an_administrator_of_slurm_can_do_all_that_a_recovery_needs(administered: Scene) -> None:
    """It keeps the pool, drains the suspect, seats another user's job, has the node checked, and frees everything."""
    scene = administered
    scene.start(slurm={"bin_dir": as_nobody(scene.state_dir.parent / "bin")}, quarantine={"claims": "drain"})
    try:
        job = scene.submit("-N2", "--exclusive")
        suspect = scene.watched(job).nodes[0]
        wait_until(lambda: any("standby" in name for name in scene.ours()), 20, f"the pool\n{scene.tail()}")
        scene.claim(job, [suspect])
        after = scene.running(job, restart=1)
        assert suspect not in after.nodes
        incident = scene.await_incident(job, outcome="resumed")
        assert [a.error for a in incident["actions"] if a.error] == []
        assert scene.node(suspect).drained
        assert "lease.acts" in scene.log.read_text()
        assert any("[[srobust-lease v=1 " in node.comment for node in scene.client.nodes())
        wait_until(lambda: not any("seat" in name for name in scene.ours()), 20, f"the seat is gone\n{scene.tail()}")
    finally:
        scene.stop()
