"""What the tests of the devcluster share."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

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


def named(pids: list[int], name: str) -> list[int]:
    """Those of `pids` that run a program of this name now; what only passes by at a job's start is none of them."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.append(pid)
    return found
