from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest
from devcluster_helpers import running, submit
from helpers import wait_until

from slurm_robust.devcluster import daemons, files, members, process, record
from slurm_robust.devcluster.cluster import DevCluster, DevClusterError, Spec
from slurm_robust.devcluster.process import Process

pytestmark = pytest.mark.slurm


def test_down_leaves_nothing(short_dir: Path) -> None:
    """After `down` with a job on it: no process, no cgroup, no device, no folder; `keep` leaves the logs."""
    cluster = DevCluster.up(Spec(nodes=2, directory=short_dir / "c"))
    job_id = submit(cluster, "env -i setsid sleep 300 & srun -N2 sleep 300", "-N2")
    running(cluster, job_id)
    wait_until(lambda: len(cluster.processes(job_id)) >= 5, 10, "all of it has started")
    assert stat.S_ISCHR(cluster.layout.gpu(7).stat().st_mode)
    now = cluster.record
    before = members.everything(now)
    assert len(before) > 8
    cluster.down(keep=True)
    assert not [found for found in before if found.alive]
    assert members.everything(now) == set(now.live().values()) == set()
    assert (cluster.layout.log / "slurmctld.log").exists()
    cluster.down()
    assert not cluster.directory.exists()
    assert not files.cgroup_top(now.settings).exists()
    cluster.down()


def test_up_that_fails_leaves_nothing_and_says_why(short_dir: Path) -> None:
    """A slurm.conf that slurmctld refuses: its own words in the error, and no trace."""
    spec = Spec(nodes=2, directory=short_dir / "c", slurm_conf_extra="SelectType=select/nonsense")
    with pytest.raises(DevClusterError, match="nonsense"):
        DevCluster.up(spec)
    assert not (short_dir / "c").exists()


def test_down_when_half_up(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `up` killed between its steps leaves a cluster that `down` can end from its folder alone."""

    def stop(*_args: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(daemons, "wait_ready", stop)
    monkeypatch.setattr(DevCluster, "down", lambda self, **_: None)
    with pytest.raises(KeyboardInterrupt):
        DevCluster.up(Spec(nodes=2, directory=short_dir / "c"))
    monkeypatch.undo()
    cluster = DevCluster.attach(short_dir / "c")
    left = members.everything(cluster.record)
    assert len(left) >= 3
    # The worst moment: processes started, and not yet on record.
    with record.changed(cluster.directory) as table:
        table.clear()
    cluster.down()
    assert not [found for found in left if found.alive]
    assert not (short_dir / "c").exists()


def test_down_never_kills_a_stranger(short_dir: Path) -> None:
    """A recorded pid that is now another's is left alone, and so is a shell that merely speaks with the cluster."""
    cluster = DevCluster.up(Spec(nodes=1, directory=short_dir / "c"))
    stranger = subprocess.Popen(["sleep", "60"])
    shell = subprocess.Popen(["sleep", "60"], env=cluster.env, cwd=cluster.layout.work)
    try:
        found = process.identify(stranger.pid)
        assert found is not None
        with record.changed(cluster.directory) as table:
            table["srobustd"] = Process(found.pid, found.start_ticks - 100)
        assert cluster.daemon_pid is None
        cluster.down()
        assert stranger.poll() is None
        assert shell.poll() is None
    finally:
        for child in (stranger, shell):
            child.kill()
            child.wait()
        cluster.down()


def test_a_recorded_pid_of_another_boot_is_a_stranger(short_dir: Path) -> None:
    """After a reboot start times begin anew: nothing on record is ours any more."""
    cluster = DevCluster.up(Spec(nodes=1, directory=short_dir / "c"))
    try:
        path = cluster.layout.record
        raw = path.read_text()
        path.write_text(json.dumps(json.loads(raw) | {"boot_id": "another"}))
        assert cluster.slurmctld_pid is None
        assert cluster.record.live() == {}
        path.write_text(raw)
        assert cluster.slurmctld_pid is not None
    finally:
        cluster.down()
