"""The prolog on a real Slurm: who is drained, with which reason, and where the job goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = pytest.mark.slurm

XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """Two nodes with the project's prolog and epilog, no daemon: the tests give the permit themselves."""
    made = DevCluster.up(Spec(nodes=2, gpus_per_node=1, kill_wait_s=2))
    yield made
    made.down()


@pytest.fixture
def broken(cluster: DevCluster) -> Iterator[DevCluster]:
    """The first node has an XID 79; afterwards it is as new."""
    cluster.add_kmsg("n1", XID_79)
    yield cluster
    wait_until(lambda: emptied(cluster), 30, "the queue is empty", poll_s=0.3)
    for path in (cluster.layout.root / "cache/n1").glob("*.json"):
        path.unlink()
    log = cluster.kmsg("n1")
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "Xid" not in line))
    cluster.run(["scontrol", "update", "nodename=n1", "comment="])
    if "DRAIN" in node(cluster):
        cluster.run(["scontrol", "update", "nodename=n1", "state=resume"])
    wait_until(lambda: "State=IDLE " in node(cluster), 30, "n1 is idle again")


def emptied(cluster: DevCluster) -> bool:
    """Cancel all jobs; True when none is left. One that is being requeued just then comes back: ask again."""
    cluster.run(["scancel", "--user=root"])
    return not queue(cluster)


def queue(cluster: DevCluster) -> str:
    """The queue: id, state, node."""
    return cluster.run(["squeue", "-h", "-o", "%i %T %N %r"]).stdout.strip()


def node(cluster: DevCluster, name: str = "n1") -> str:
    """What Slurm says of a node."""
    return cluster.run(["scontrol", "show", "node", "-o", name]).stdout


def give_permit(cluster: DevCluster) -> None:
    """What the daemon does while its breaker is closed."""
    comment = f"rack 12 [[srobust-drain-permit until={int(time.time()) + 120}]]"
    cluster.run(["scontrol", "update", "nodename=n1", f"comment={comment}"])


def submit(cluster: DevCluster, mark: Path) -> str:
    """A job that writes into `mark` where it runs; of two free nodes it gets n1."""
    script = f"echo $SLURMD_NODENAME >{mark}; sleep 120"
    return cluster.run(["sbatch", "--parsable", "-N1", "-o", "/dev/null", "--wrap", script]).stdout.strip()


def started_on(mark: Path) -> str:
    """The node on which the job's script has begun; Slurm calls a job running while its prolog still is."""
    return wait_until(lambda: mark.exists() and mark.read_text().strip(), 30, "the job's script runs")


def test_with_a_permit_the_node_is_drained_and_the_job_runs_elsewhere(broken: DevCluster, tmp_path: Path) -> None:
    """Our reason stands, not `Prolog error`; the job is requeued unheld and runs on the other node."""
    give_permit(broken)
    mark = tmp_path / "mark"
    job = submit(broken, mark)
    wait_until(lambda: "DRAIN" in node(broken), 30, "n1 is drained")
    assert "Reason=srobust: XID 79 (GPU has fallen off the bus) on GPU 0000:9b:00" in node(broken)
    assert "rack 12" in node(broken)
    assert "DRAIN" not in node(broken, "n2")
    # A requeue waits two minutes for credentials to expire; an operator's word ends that, as the daemon's does.
    wait_until(lambda: f"{job} PENDING" in queue(broken), 30, "the job waits")
    assert "held" not in queue(broken).lower()
    broken.run(["scontrol", "update", f"jobid={job}", "starttime=now"])
    assert started_on(mark) == "n2"


def test_without_a_permit_the_job_runs_and_the_node_is_untouched(broken: DevCluster, tmp_path: Path) -> None:
    """No daemon, no permit: only slurmd's log names the broken node."""
    submit(broken, tmp_path / "mark")
    assert started_on(tmp_path / "mark") == "n1"
    assert "DRAIN" not in node(broken)
    assert "Reason=" not in node(broken)


def test_in_observe_mode_the_job_runs_also_with_a_permit(broken: DevCluster, tmp_path: Path) -> None:
    """The same plan, and nothing done."""
    config = broken.layout.robust_yaml
    before = config.read_text()
    config.write_text(before.replace("mode: act", "mode: observe"))
    assert config.read_text() != before
    try:
        give_permit(broken)
        submit(broken, tmp_path / "mark")
        assert started_on(tmp_path / "mark") == "n1"
        assert "DRAIN" not in node(broken)
        broken.run(["scancel", "--user=root"])
        # The epilog looks too, and must do as little.
        wait_until(lambda: not queue(broken), 30, "the job has ended")
        assert "DRAIN" not in node(broken)
    finally:
        config.write_text(before)


def test_with_a_permit_the_epilog_drains_after_the_job(cluster: DevCluster, broken: DevCluster, tmp_path: Path) -> None:
    """A fault that shows while the job runs: the job ends as it would, the node is drained in our words."""
    log = cluster.kmsg("n1")
    whole = log.read_text()
    log.write_text(whole.replace(XID_79, "quiet"))
    give_permit(broken)
    submit(broken, tmp_path / "mark")
    assert started_on(tmp_path / "mark") == "n1"
    log.write_text(whole)
    broken.run(["scancel", "--user=root"])
    wait_until(lambda: "DRAIN" in node(broken), 30, "n1 is drained")
    assert "Reason=srobust: XID 79" in node(broken)


def test_a_recheck_tells_its_verdict_in_its_own_comment(broken: DevCluster, tmp_path: Path) -> None:
    """`srobust check --tell-slurm` inside a job on the broken node: what the daemon reads afterwards."""
    mark = tmp_path / "mark"
    check = f"{sys.executable} -m slurm_robust.nodecheck --only xid --tell-slurm; echo $? >{mark}"
    job = broken.run(["sbatch", "--parsable", "-w", "n1", "-o", "/dev/null", "--wrap", check]).stdout.strip()
    assert started_on(mark) == "1"
    said = broken.run(["scontrol", "show", "job", "-o", job]).stdout
    assert "srobust-check: unfit: XID 79 (GPU has fallen off the bus) on GPU 0000:9b:00" in said
