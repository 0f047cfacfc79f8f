"""What Slurm is told of a node's fault, on real clusters: kernel log, root service, daemon."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import wait_until

from slurm_robust.config.site import SlurmConfig
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.marks import fault_marker, watch_marker
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.commands import CommandClient

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]

XID = "NVRM: Xid (PCI:0000:{}:00): 79, pid=1, name=python, GPU has fallen off the bus."


class Site:
    """A cluster whose nodes are watched."""

    def __init__(self, cluster: DevCluster) -> None:
        self.cluster = cluster
        self.client = CommandClient(SlurmConfig(conf=str(cluster.layout.slurm_conf)))

    def node(self, name: str) -> Node:
        """One node."""
        return next(n for n in self.client.nodes() if n.name == name)

    def sleepers(self, *nodes: str) -> list[str]:
        """A job on each of these nodes that may be requeued; their ids, once they run."""
        ids = []
        for name in nodes:
            args = ["sbatch", "--parsable", "--requeue", "--exclusive", "-N1", "-w", name, "-o", "/dev/null"]
            ids.append(self.cluster.run(args, input="#!/bin/sh\nexec sleep 300\n").stdout.strip())
        wait_until(lambda: all(self.node(name).busy for name in nodes), 20, "the jobs run")
        return ids

    def said(self, name: str) -> str:
        """What a node's service has said."""
        return (self.cluster.layout.log / f"nodewatch.{name}.out").read_text()

    def daemon(self) -> str:
        """The daemon's log."""
        return (self.cluster.layout.log / "srobustd.log").read_text()


@pytest.fixture
def site(devcluster_factory: Callable[[Spec], DevCluster]) -> Iterator[Callable[..., Site]]:
    """Brings up a cluster for one test."""
    up: list[DevCluster] = []

    def make(**wanted: Any) -> Site:
        settings = {"daemon": {"protect": "all"}, "breaker": {"max_partition_share": 0.5}}
        spec = Spec(gpus_per_node=0, prolog=False, kill_wait_s=2, nodewatch=True, robust_yaml=settings, **wanted)
        up.append(devcluster_factory(spec))
        return Site(up[-1])

    yield make
    for cluster in up:
        cluster.down()


def test_a_node_without_jobs_is_drained_and_a_storm_is_one_alert(site: Callable[..., Site]) -> None:
    """The standby node is out, and replaced, within seconds; then all nodes with jobs report a fault, and keep them."""
    s = site(nodes=5, daemon=True, standby=1)
    pool = wait_until(lambda: [r for r in s.client.reservations() if "standby" in r.name], 20, "a standby pool")[0]
    idle = pool.nodes
    wait_until(lambda: "drain-permit" in s.node(idle).comment, 20, "its drain permit")
    s.cluster.add_kmsg(idle, XID.format("17"))
    at_s = time.time()
    wait_until(lambda: s.node(idle).drained, 15, f"drained by the daemon\n{s.said(idle)}")
    assert s.node(idle).reason.startswith("srobust: XID 79 (GPU has fallen off the bus)")
    wait_until(lambda: idle not in s.client.reservations()[0].nodes, 15, "it has left the pool")
    assert time.time() - at_s < 20
    held = s.client.reservations()[0].nodes
    others = [name for name in s.cluster.node_names if name not in (idle, held)]
    jobs = s.sleepers(*others)
    for name in others:
        s.cluster.add_kmsg(name, XID.format("9b"))
    wait_until(lambda: "nodes.fault_storm" in s.daemon(), 20, f"the alert\n{s.daemon()[-2000:]}")
    wait_until(lambda: not any(fault_marker.marked(n.extra) for n in s.client.nodes()), 20, "markers are removed")
    assert s.daemon().count("share a cause") == 1
    assert [n.name for n in s.client.nodes() if n.drained] == [idle]
    assert [(j.state, j.restart_count) for j in s.client.jobs() if str(j.ref.job_id) in jobs] == [("RUNNING", 0)] * 3


def test_without_a_daemon_there_are_only_words(site: Callable[..., Site]) -> None:
    """No permit, no marker, no drain: neither on a busy node nor on an idle one."""
    s = site(nodes=2, daemon=False)
    s.sleepers("n1")
    for name in ("n1", "n2"):
        s.cluster.add_kmsg(name, XID.format("9b"))
    wait_until(lambda: all("no srobustd manages it" in s.said(n) for n in ("n1", "n2")), 20, "the words")
    assert [(n.drained, watch_marker.without(n.extra)) for n in s.client.nodes()] == [(False, "")] * 2


def test_in_observe_mode_there_are_only_words(site: Callable[..., Site]) -> None:
    """The same with a daemon that may not act."""
    s = site(nodes=2, daemon=True, mode="observe")
    s.sleepers("n1")
    for name in ("n1", "n2"):
        s.cluster.add_kmsg(name, XID.format("9b"))
    wait_until(lambda: all("observe: would tell Slurm that" in s.said(n) for n in ("n1", "n2")), 20, "the words")
    assert [(n.drained, watch_marker.without(n.extra), n.comment) for n in s.client.nodes()] == [(False, "", "")] * 2


def test_a_controller_that_does_not_answer_is_told_when_it_does(site: Callable[..., Site]) -> None:
    """Meanwhile the service goes on; the marker comes late, and the daemon acts on it."""
    s = site(nodes=3, daemon=True)
    wait_until(lambda: "drain-permit" in s.node("n1").comment, 20, "drain permits")
    (job,) = s.sleepers("n1")
    pid = s.cluster.slurmctld_pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    s.cluster.add_kmsg("n1", XID.format("9b"))
    wait_until(lambda: "slurm: " in s.said("n1"), 30, f"it is said once\n{s.said('n1')}")
    s.cluster.add_kmsg("n1", "nvme nvme0: Disabling device after reset failure: -19")
    wait_until(lambda: "disk_lost" in s.said("n1"), 15, "other findings come as always")
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: s.node("n1").drained, 60, f"drained\n{s.said('n1')}\n{s.daemon()[-2000:]}")
    wait_until(lambda: [j for j in s.client.jobs() if j.restart_count == 1 and str(j.ref.job_id) == job], 30, "back")


@pytest.mark.variant
def test_two_nodes_of_a_leaf_switch_are_drained_as_one_fault(site: Callable[..., Site]) -> None:
    """Slurm keeps both reasons, which name the switch; one line tells of both."""
    s = site(nodes=6, daemon=True)
    wait_until(lambda: "drain-permit" in s.node("n1").comment, 20, "the daemon works")
    s.cluster.layout.slurm_conf.with_name("topology.conf").write_text("SwitchName=s0 Nodes=n[1-4]\n")
    no_link = "no link on mlx5_0/1 (DOWN, Disabled)"
    s.client.drain("n1", f"srobust: {no_link}")
    marker = fault_marker.FaultMarker(int(time.time()), "port", (), no_link)
    s.client.set_node_extra("n2", fault_marker.render(marker))
    reason = f"srobust: {no_link}; look at leaf switch s0 first: n[1-2] failed together"
    wait_until(lambda: [s.node(name).reason for name in ("n1", "n2")] == [reason] * 2, 40, "both reasons")
    wait_until(lambda: "nodes.leaf_switch" in s.daemon(), 20, "the line for people")
    assert s.daemon().count("nodes.leaf_switch") == 1
    assert s.daemon().count("action.drain:") == 2
