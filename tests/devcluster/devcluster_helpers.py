"""What the tests of the devcluster share."""

from __future__ import annotations

import os

from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

ROOT = os.geteuid() == 0


def node_state(cluster: DevCluster, node: str) -> str:
    """A node's state, without the star of one that does not respond."""
    return cluster.run(["sinfo", "-h", "-n", node, "-o", "%T"]).stdout.strip().rstrip("*")


def submit(cluster: DevCluster, script: str, *options: str, user: str | None = None) -> int:
    """Submit a batch job; its id."""
    done = cluster.run(["sbatch", "--parsable", *options, "--wrap", script], user=user)
    return int(done.stdout)


def running(cluster: DevCluster, job_id: int) -> None:
    """Wait until a job runs."""
    wait_until(
        lambda: cluster.run(["squeue", "-h", "-j", str(job_id), "-o", "%T"]).stdout.strip() == "RUNNING",
        20,
        f"job {job_id} runs",
    )
