"""A devcluster's own slurmdbd and MariaDB."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import psutil
import pytest
from accounting_tools import need_accounting

from slurm_robust.devcluster import conf, members
from slurm_robust.devcluster.cluster import DevCluster, DevClusterError, Spec
from slurm_robust.devcluster.conf import Settings
from slurm_robust.devcluster.spec import ClusterPaths

pytestmark = pytest.mark.slurm


@pytest.mark.variant  # one more cluster: the contract of the accounting has one in each run
def test_it_is_private_and_ends_with_the_cluster(short_dir: Path) -> None:
    """No port but slurmdbd's own on this machine, a folder that nobody else enters, and nothing left by `down`."""
    need_accounting()
    cluster = DevCluster.up(Spec(nodes=1, directory=short_dir / "c", accounting=True))
    try:
        live = cluster.record.live()
        assert {"mariadbd", "slurmdbd"} <= live.keys()
        assert not psutil.Process(live["mariadbd"].pid).net_connections("inet")
        assert stat.S_IMODE(cluster.layout.database.stat().st_mode) == 0o700
        assert stat.S_IMODE(cluster.layout.slurmdbd_conf.stat().st_mode) == 0o600
        shown = cluster.run(["sacctmgr", "-n", "-P", "show", "cluster", "format=cluster"]).stdout
        assert shown.strip() == cluster.name
        # As after a kill -9 of everything that looked after them.
        os.kill(live["slurmctld"].pid, signal.SIGKILL)
        before = members.everything(cluster.record)
    finally:
        cluster.down()
    assert not [found for found in before if found.alive]
    assert not (short_dir / "c").exists()


def test_without_it_nothing_of_it_is_there() -> None:
    """A cluster without accounting has Slurm's own default."""
    settings = Settings("dev1", "root", "munge", "cgroup", 12000, (22, 5))
    text = conf.slurm_conf(Spec(), settings, ClusterPaths(Path("/x")))
    assert "AccountingStorageType=accounting_storage/none" in text.splitlines()
    assert "AccountingStorageHost" not in text


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, short_dir: Path) -> None:
    """Before anything was started."""
    from slurm_robust.devcluster import machine  # noqa: PLC0415 (only here)

    real = machine.shutil.which
    monkeypatch.setattr(machine.shutil, "which", lambda name, **how: None if name == "mariadbd" else real(name, **how))
    with pytest.raises(DevClusterError, match="apt-get install mariadb-server-core"):
        DevCluster.up(Spec(nodes=1, directory=short_dir / "c", accounting=True))
    assert not (short_dir / "c").exists()
