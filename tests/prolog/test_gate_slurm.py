"""Stages on a real Slurm: the fresh verdict, strikes of the health check, and many nodes that fail at once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = pytest.mark.slurm

XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."


def node(cluster: DevCluster, name: str = "n1") -> str:
    """What Slurm says of a node."""
    return cluster.run(["scontrol", "show", "node", "-o", name]).stdout


def give_permit(cluster: DevCluster, names: str, most: str = "") -> None:
    """What the daemon does while its breaker is closed."""
    comment = f"[[srobust-drain-permit until={int(time.time()) + 300}{most}]]"
    cluster.run(["scontrol", "update", f"nodename={names}", f"comment={comment}"])


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short and root's own, as a spool's socket paths want it."""
    with tempfile.TemporaryDirectory(prefix="srobust-gate-") as made:
        yield Path(made)


def test_health_check_prolog_epilog_one_after_another(folder: Path, tmp_path: Path) -> None:
    """A healthy node's prologs believe the health check; a fault needs the second look; a person's reason stays."""
    health = folder / "c/etc/healthcheck"
    spec = Spec(
        nodes=2,
        gpus_per_node=0,
        kill_wait_s=2,
        directory=folder / "c",
        slurm_conf_extra=f"HealthCheckProgram={health}\nHealthCheckInterval=2\nHealthCheckNodeState=ANY",
        robust_yaml={"nodecheck": {"options": {"xid": {"strikes": 2}}, "disable": ["ethernet"]}},
    )
    cluster = DevCluster.up(spec)
    try:
        verdict = cluster.layout.cache("n1") / "fresh"
        wait_until(verdict.exists, 30, "the health check leaves its verdict", poll_s=0.2)

        # The prolog believes it.
        cluster.run(["srun", "--immediate=20", "-w", "n1", "true"], timeout_s=40)
        told = cluster.layout.log / "checks.n1.log"
        wait_until(lambda: "srobust-prolog: cached verdict: " in told.read_text(), 10, "the prolog says so")

        wait_until(lambda: "srobust-epilog: " in told.read_text(), 10, "the job's epilog is over")

        # The second look in a row drains; the first only says so.
        give_permit(cluster, "n1")
        cluster.add_kmsg("n1", XID_79)
        wait_until(lambda: "DRAIN" in node(cluster), 30, "n1 is drained", poll_s=0.2)
        assert "Reason=srobust: XID 79 (GPU has fallen off the bus) on GPU 0000:9b:00" in node(cluster)
        assert "(run 1 of 2): does not count yet" in told.read_text()
        assert not verdict.exists()

        # A person's words are never changed, however often it looks.
        cluster.run(["scontrol", "update", "nodename=n1", "state=drain", "reason=fan, Ann"])
        seen = told.read_text().count("already drained")
        wait_until(lambda: told.read_text().count("already drained") > seen + 1, 30, "two more looks", poll_s=0.2)
        assert "Reason=fan, Ann" in node(cluster)
        assert "DRAIN" not in node(cluster, "n2")
    finally:
        cluster.down()


def test_a_bad_driver_roll_out_does_not_drain_a_fleet(folder: Path) -> None:
    """12 nodes with a permit fail in the same second: about as many go as the breaker allows, the rest train."""
    spec = Spec(
        nodes=12,
        gpus_per_node=0,
        kill_wait_s=2,
        directory=folder / "c",
        daemon=True,
        robust_yaml={
            "breaker": {"max_drains": 2, "max_partition_share": 1.0},
            "nodecheck": {"disable": ["ethernet", "filesystem", "shm"], "permit_timeout_s": 10, "deadline_s": 20},
        },
    )
    cluster = DevCluster.up(spec, timeout_s=60)
    try:
        wait_until(lambda: "most=3" in node(cluster, "n12"), 30, "the daemon gives a permit", poll_s=0.2)
        for name in cluster.node_names:
            cluster.add_kmsg(name, XID_79)
        for _ in cluster.node_names:
            cluster.run(["sbatch", "-N1", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 60"])
        running = ["squeue", "-h", "-t", "R", "-o", "%N"]
        wait_until(lambda: len(cluster.run(running).stdout.split()) >= 6, 90, "jobs run", poll_s=0.5)
        log = cluster.layout.log / "srobustd.log"
        wait_until(lambda: "breaker.open" in log.read_text(), 30, "the breaker opens", poll_s=0.2)
        time.sleep(3)  # nothing more happens: there is no event to wait for
        drained = cluster.run(["sinfo", "-h", "-N", "-t", "drain", "-o", "%N"]).stdout.split()
        assert 3 <= len(drained) <= 5, drained
    finally:
        cluster.down()


def test_without_a_daemon_a_site_may_choose_to_drain(folder: Path) -> None:
    """`without_daemon: drain`: three of four nodes fail, two are drained, and the third trains on: the bound is 2."""
    spec = Spec(
        nodes=4,
        gpus_per_node=0,
        kill_wait_s=2,
        directory=folder / "c",
        robust_yaml={
            "breaker": {"max_drains": 2, "max_partition_share": 1.0},
            "nodecheck": {
                "without_daemon": "drain",
                "disable": ["ethernet", "filesystem", "shm"],
                "permit_timeout_s": 10,
                "deadline_s": 20,
            },
        },
    )
    cluster = DevCluster.up(spec, timeout_s=60)
    try:
        for name in ("n1", "n2", "n3"):
            cluster.add_kmsg(name, XID_79)
        for name in ("n1", "n2"):
            cluster.run(["sbatch", "-w", name, "-o", "/dev/null", "--wrap", "sleep 60"])
            wait_until(lambda name=name: "DRAIN" in node(cluster, name), 30, f"{name} is drained")  # type: ignore[misc]
            assert "Reason=srobust: XID 79" in node(cluster, name)
        cluster.run(["sbatch", "-w", "n3", "-o", "/dev/null", "--wrap", "sleep 60"])
        told = cluster.layout.log / "checks.n3.log"
        wait_until(lambda: told.exists() and "breaker.max_drains is 2" in told.read_text(), 30, "n3 says why it stays")
        assert "DRAIN" not in node(cluster, "n3")
        running = ["squeue", "-h", "-t", "R", "-o", "%N"]
        wait_until(lambda: "n3" in cluster.run(running).stdout.split(), 30, "its job runs")
    finally:
        cluster.down()
