"""`srobust devcluster up --nodewatch`: a service a node, each with its own kernel log and its own file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.marks import node_findings

pytestmark = pytest.mark.slurm


def found(cluster: DevCluster, node: str) -> list[node_findings.NodeFinding]:
    """A node's findings, as its agents read them."""
    return node_findings.read(str(cluster.findings(node)), node_findings.boot_id(), (0, os.geteuid()))


def test_a_line_of_a_node_is_a_finding_of_that_node(short_dir: Path) -> None:
    """Of no other; after SIGKILL it goes on; it ends with its node's power, and with the cluster."""
    cluster = DevCluster.up(Spec(nodes=2, gpus_per_node=0, nodewatch=True, directory=short_dir))
    try:
        assert cluster.processes() == [], "no service is taken for a job"
        cluster.add_kmsg("n2", "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.")
        wait_until(lambda: [f.code for f in found(cluster, "n2") if f.kind == "xid"] == [79], 10, "the finding")
        assert [f for f in found(cluster, "n1") if f.kind == "xid"] == []
        cluster.kill_nodewatch("n2", signal.SIGKILL)
        cluster.add_kmsg("n2", "NVRM: Xid (PCI:0000:9b:00): 31, pid=1, MMU Fault")
        cluster.start_nodewatch("n2")
        wait_until(lambda: [f.code for f in found(cluster, "n2") if f.kind == "xid"] == [79, 31], 10, "the next one")
        cluster.kill_slurmd("n2")
        assert "nodewatch.n2" not in cluster.record.live()
        cluster.start_slurmd("n2")
        cluster.wait_ready()
        assert "nodewatch.n2" in cluster.record.live()
    finally:
        cluster.down()
    assert not short_dir.exists()
