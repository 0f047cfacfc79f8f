"""A real slurmctld with thousands of nodes that look usable, and jobs that run on them: for benchmarks of the daemon.

A few real slurmds answer for all other nodes, whose address and port are theirs. So slurmctld hears of every node once,
takes it for idle, and gives it to jobs. `SlurmdTimeout=0` keeps it from asking again. The script of a job runs on one
of the real nodes; the other nodes of the job are only allocated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib import first_job_id, wait_for

from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.marks.claim import Claim, render

REAL_NODES = 4
START_S = 300.0
NODES_OF_A_JOB = 4
"""Beside the real one."""
SUBMITTERS = 4
_SCRIPT = "#!/bin/sh\ntrap '' TERM\nsleep 100000\n"
"""It ignores SIGTERM, so that its end takes as long as `KillWait`: a recovery of it stays under way."""


@contextmanager
def large_slurm(nodes: int, folder: Path, robust_yaml: dict[str, Any]) -> Iterator[DevCluster]:
    """A Slurm of so many nodes, all idle; `folder` takes the lines of slurm.conf that name them."""
    real = min(REAL_NODES, nodes - 1)
    more = folder / f"nodes-{nodes}.conf"
    more.write_text("# the other nodes, once the ports of the real ones are known\n")
    extra = f"{first_job_id()}Include {more}\nTreeWidth=65533\nMessageTimeout=90\nDebugFlags=NO_CONF_HASH\n"
    spec = Spec(
        nodes=real,
        gpus_per_node=0,
        cpus_per_node=1024,
        prolog=False,
        slurmd_timeout_s=0,
        kill_wait_s=600,
        slurm_conf_extra=f"{extra}SlurmdDebug=error\nMaxJobCount=20000\n",
        robust_yaml=robust_yaml,
    )
    cluster = DevCluster.up(spec, timeout_s=120)
    try:
        port = cluster.record.settings.ctld_port
        lines = (
            f"NodeName={_folded(k, real, nodes)} NodeAddr=127.0.0.1 Port={port + 1 + k} CPUs=64 RealMemory=500000\n"
            for k in range(real)
        )
        more.write_text("".join(lines))
        cluster.kill_slurmctld()
        cluster.start_slurmctld()
        cluster.wait_ready(timeout_s=120)
        sinfo = ["sinfo", "-h", "-t", "idle", "-o", "%T %D"]
        wait_for(lambda: f"idle {nodes}\n" in cluster.run(sinfo).stdout, START_S, f"{nodes} idle nodes", poll_s=1.0)
        yield cluster
    finally:
        cluster.down()


def _folded(part: int, parts: int, nodes: int) -> str:
    """The names that one of the real nodes answers for."""
    others = nodes - parts
    first, last = 1 + part * others // parts, (part + 1) * others // parts
    return f"x[{first:05}-{last:05}]"


def own_nodes(number: int) -> list[str]:
    """The nodes of the n-th supervised job, beside the real one."""
    return [f"x{1 + number * NODES_OF_A_JOB + k:05}" for k in range(NODES_OF_A_JOB)]


def submit(cluster: DevCluster, supervised: int, others: int) -> list[int]:
    """Have so many supervised jobs running, and others waiting; returns the ids of the supervised ones."""

    def watched(number: int) -> int:
        claim = render(Claim("watching", f"line-{number}", at_s=time.time(), step=number))
        real = f"n{1 + number % min(REAL_NODES, len(cluster.node_names))}"
        where = f"--nodelist={','.join([real, *own_nodes(number)])}"
        options = [where, f"--nodes={1 + NODES_OF_A_JOB}", f"--comment={claim}", "--time=1-0"]
        return int(_sbatch(cluster, *options))

    def other(_: int) -> None:
        _sbatch(cluster, "--hold", "--nodes=2", "--job-name=another")

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        jobs = list(pool.map(watched, range(supervised)))
        list(pool.map(other, range(others)))
    running = ["squeue", "-h", "-t", "R", "-o", "%A"]
    wait_for(lambda: len(cluster.run(running).stdout.split()) >= supervised, 300, "the supervised jobs", poll_s=1.0)
    return jobs


def _sbatch(cluster: DevCluster, *options: str) -> str:
    command = ["sbatch", "--parsable", "--output=/dev/null", *options]
    return cluster.run(command, input=_SCRIPT, timeout_s=120).stdout.split(";")[0]


def progress(cluster: DevCluster, job_id: int, number: int, step: int) -> None:
    """The n-th supervised job tells how its training gets on."""
    now_s = round(time.time(), 3)
    told = {"first": now_s - 9, "new": now_s - 9, "last": now_s, "step": float(step), "pace": 1.0, "every": 60.0}
    said = Claim("watching", f"line-{number}", at_s=now_s, step=number, progress={**told, "slow": 1.5, "ckpt": 2.5})
    cluster.run(["scontrol", "update", f"JobId={job_id}", f"Comment={render(said)}"], timeout_s=60)


def claim(cluster: DevCluster, job_id: int, number: int) -> None:
    """The n-th supervised job asks for a requeue without its first node."""
    evict = (own_nodes(number)[0],)
    said = Claim("wants", f"line-{number}", incident=f"i-{number}", evict=evict, why="it hangs", at_s=time.time())
    cluster.run(["scontrol", "update", f"JobId={job_id}", f"Comment={render(said)}"], timeout_s=60)
