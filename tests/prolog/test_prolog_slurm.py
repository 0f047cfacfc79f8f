"""The prolog on a real Slurm: who is drained, with which reason, and where the job goes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = pytest.mark.slurm

XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """Two nodes with the project's prolog and epilog, no daemon: the tests give leave themselves."""
    made = DevCluster.up(Spec(nodes=2, gpus_per_node=1, kill_wait_s=2))
    yield made
    made.down()


@pytest.fixture
def broken(cluster: DevCluster) -> Iterator[DevCluster]:
    """The first node has an XID 79; afterwards it is as new."""
    cluster.add_kmsg("n1", XID_79)
    yield cluster
    cluster.run(["scancel", "--user=root"])
    wait_until(lambda: not queue(cluster), 30, "the queue is empty")
    for path in (cluster.layout.root / "cache/n1").glob("*.json"):
        path.unlink()
    log = cluster.kmsg("n1")
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "Xid" not in line))
    cluster.run(["scontrol", "update", "nodename=n1", "comment="])
    if "DRAIN" in node(cluster):
        cluster.run(["scontrol", "update", "nodename=n1", "state=resume"])
    wait_until(lambda: "State=IDLE " in node(cluster), 30, "n1 is idle again")


def queue(cluster: DevCluster) -> str:
    """The queue: id, state, node."""
    return cluster.run(["squeue", "-h", "-o", "%i %T %N %r"]).stdout.strip()


def node(cluster: DevCluster, name: str = "n1") -> str:
    """What Slurm says of a node."""
    return cluster.run(["scontrol", "show", "node", "-o", name]).stdout


def give_leave(cluster: DevCluster) -> None:
    """What the daemon does while its breaker is closed."""
    comment = f"rack 12 [[srobust-leave until={int(time.time()) + 120}]]"
    cluster.run(["scontrol", "update", "nodename=n1", f"comment={comment}"])


def submit(cluster: DevCluster) -> str:
    """A job that wants n1 first: it has the lowest weight of equals, and is free."""
    done = cluster.run(["sbatch", "--parsable", "-N1", "-o", "/dev/null", "--wrap", "sleep 120"])
    return done.stdout.strip()


def running_on(cluster: DevCluster, job: str) -> str:
    """The node a job runs on, empty where it does not run yet."""
    for line in queue(cluster).splitlines():
        words = line.split()
        if words[0] == job and words[1] == "RUNNING":
            return words[2]
    return ""


def test_with_leave_the_node_is_drained_and_the_job_runs_elsewhere(broken: DevCluster) -> None:
    """Our reason stands, not `Prolog error`; the job is requeued unheld and runs on the other node."""
    give_leave(broken)
    job = submit(broken)
    wait_until(lambda: "DRAIN" in node(broken), 30, "n1 is drained")
    assert "Reason=srobust: XID 79 (GPU has fallen off the bus) on GPU 0000:9b:00" in node(broken)
    assert "rack 12" in node(broken)
    assert "DRAIN" not in node(broken, "n2")
    # A requeue waits two minutes for credentials to expire; an operator's word ends that, as the daemon's does.
    wait_until(lambda: f"{job} PENDING" in queue(broken), 30, "the job waits")
    assert "held" not in queue(broken).lower()
    broken.run(["scontrol", "update", f"jobid={job}", "starttime=now"])
    assert wait_until(lambda: running_on(broken, job), 30, "the job runs again") == "n2"


def test_without_leave_the_job_runs_and_the_node_is_untouched(broken: DevCluster) -> None:
    """No daemon, no leave: the broken node is told in slurmd's log only."""
    job = submit(broken)
    assert wait_until(lambda: running_on(broken, job), 30, "the job runs") == "n1"
    assert "DRAIN" not in node(broken)
    assert "Reason=" not in node(broken)


def test_in_observe_mode_the_job_runs_also_with_leave(broken: DevCluster) -> None:
    """The same plan, and nothing done."""
    config = broken.layout.robust_yaml
    before = config.read_text()
    config.write_text(before.replace("mode: act", "mode: observe"))
    assert config.read_text() != before
    try:
        give_leave(broken)
        job = submit(broken)
        assert wait_until(lambda: running_on(broken, job), 30, "the job runs") == "n1"
    finally:
        config.write_text(before)
    assert "DRAIN" not in node(broken)
