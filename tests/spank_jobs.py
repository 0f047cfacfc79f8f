"""The processes of a job that the SPANK plugin's tests look for."""

from __future__ import annotations

import contextlib
from pathlib import Path

from slurm_robust.devcluster.cluster import DevCluster


def watches(cluster: DevCluster, job: str) -> list[int]:
    """Processes of `srobust attach` in this job."""
    wanted = {b"attach", job.encode()}
    return [pid for pid, words in command_lines(cluster, job).items() if wanted <= set(words.split(b"\0"))]


def command_lines(cluster: DevCluster, job: str) -> dict[int, bytes]:
    """The command lines of all processes of a job, by pid."""
    found = {}
    for pid in cluster.processes(int(job)):
        with contextlib.suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return found
