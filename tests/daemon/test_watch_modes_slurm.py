"""A node watch on a real Slurm tells its mode, and follows robust.yaml without a signal; `srobust status` compares."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from helpers import wait_until

from slurm_robust.config.site import SlurmConfig
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.marks import watch_marker
from slurm_robust.slurm.commands import CommandClient

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(200), pytest.mark.variant]


def test_a_changed_file_reaches_node_and_status(devcluster_factory: Callable[[Spec], DevCluster]) -> None:
    """The file is changed to observe: the node watch follows, the daemon does not, and status names the node."""
    cluster = devcluster_factory(Spec(nodes=1, gpus_per_node=0, prolog=False, daemon=True, nodewatch=True))
    client = CommandClient(SlurmConfig(conf=str(cluster.layout.slurm_conf)))

    def mode() -> str:
        return watch_marker.parse(client.nodes()[0].extra)

    def status() -> str:
        done = cluster.run([sys.executable, "-m", "slurm_robust.cli.main", "status"], check=False)
        return " ".join(done.stdout.split())

    wait_until(lambda: mode() == "act", 60, "the node has told its mode")
    assert "node watch" not in status()
    site = cluster.layout.robust_yaml
    site.write_text(site.read_text().replace("mode: act", "mode: observe"))
    wait_until(lambda: mode() == "observe", 90, "it has read the file, and told")
    wait_until(lambda: "The node watch of n1 is in mode observe" in status(), 20, status())
