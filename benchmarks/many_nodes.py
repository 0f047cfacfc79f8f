"""The watch step on a real Slurm of many nodes: its start, a capture of every rank, and what an agent needs.

All nodes share this machine, so that the 64 agents and their py-spys share its few cores: on real nodes, with cores of
their own, starts and captures are faster. An agent alone on its node shares no memory with others, so its resident
size counts here, and not only its share of it.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import wait_for

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.supervise.agent.messages import TakeCapture
from slurm_robust.supervise.reported.fleet import Fleet
from slurm_robust.supervise.reported.watch_step import WatchStep

RANK = "import time\nwhile True:\n    time.sleep(0.5)\n"
_MIB = 1 << 20
_POLL_S = 0.005
_SETTLE_S = 1.0
_REST_S = 2.0
"""As long as two looks through /proc, four ticks, one heartbeat."""


@dataclass(frozen=True)
class ManyNodes:
    """One value a repeat; memory and processor time are of single agents, the hungriest of all.

    Attributes:
        watch_start_s: From the command to the last agent's first word.
        ranks_known_s: From the command until every rank was found.
        capture_s: From the order to the last node's archive.
        agent_pss_mib: Proportional share; pages that agents of this one machine share are divided among them.
        agent_rss_mib: Resident size, as an agent alone on its node has it.
        agent_peak_mib: The same at its highest, captures included (py-spy itself not).
        agent_cpu_share: Processor seconds a second of a median agent, at rest.
    """

    nodes: int
    ranks: int
    watch_start_s: list[float]
    ranks_known_s: list[float]
    capture_s: list[float]
    agent_pss_mib: float
    agent_rss_mib: float
    agent_peak_mib: float
    agent_cpu_share: float


def agents_of(job_id: int, conf: str) -> list[int]:
    """Pids of a job's agents on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if b"slurm_robust.supervise.agent" not in command or command.startswith((b"srun", b"slurmstepd")):
                continue
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"SLURM_JOB_ID={job_id}".encode() in environment and f"SLURM_CONF={conf}".encode() in environment:
            found.append(int(entry.name))
    return found


def memory_mib(pid: int) -> tuple[float, float, float]:
    """(proportional share, resident size, highest resident size) of a process, MiB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    status = Path(f"/proc/{pid}/status").read_text()

    def kib(text: str, name: str) -> float:
        found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0

    return kib(rollup, "Pss"), kib(rollup, "Rss"), kib(status, "VmHWM")


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far, to the nanosecond (/proc/PID/stat counts in hundredths)."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


async def _until(done: Any, timeout_s: float, what: str) -> float:
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > timeout_s:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(_POLL_S)
    return time.monotonic() - began


async def _measure(cluster: DevCluster, job_id: int, ranks_each: int, repeats: int) -> ManyNodes:
    config, nodes = SuperviseConfig(), list(cluster.node_names)
    starts, known, captures = [], [], []
    memory: list[tuple[float, float, float]] = []
    share = 0.0
    for repeat in range(repeats):
        fleet, log = Fleet(""), list[str]()
        watch = WatchStep(job_id, config.tick_s, lambda m, fleet=fleet: fleet.feed(m, time.time()), log.append)
        began = time.monotonic()
        await watch.start(nodes, "")
        try:
            await _until(lambda fleet=fleet: len(fleet.heard_at_s) == len(nodes), 120, f"all agents; {log}")
            starts.append(time.monotonic() - began)
            await _until(lambda fleet=fleet: len(fleet.ranks) == len(nodes) * ranks_each, 60, "all ranks")
            known.append(time.monotonic() - began)
            await asyncio.sleep(_SETTLE_S)
            fleet.expect(1)
            watch.send(TakeCapture(1, 1, 60.0))
            captures.append(
                await _until(lambda fleet=fleet: len(fleet.archives.get(1, {})) == len(nodes), 90, "all stacks")
            )
            if repeat == repeats - 1:
                pids = agents_of(job_id, str(cluster.layout.slurm_conf))
                memory = [memory_mib(pid) for pid in pids]
                before = [cpu_s(pid) for pid in pids]
                await asyncio.sleep(_REST_S)
                used = [cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
                share = statistics.median(used) / _REST_S
        finally:
            await watch.stop()
    pss, rss, peak = (max(m[i] for m in memory) for i in range(3))
    return ManyNodes(len(nodes), len(nodes) * ranks_each, starts, known, captures, pss, rss, peak, share)


def measure(nodes: int, ranks_each: int, repeats: int) -> ManyNodes:
    """Bring up so many nodes with so many small Python ranks each, and watch them."""
    cluster = DevCluster.up(Spec(nodes=nodes, gpus_per_node=0, prolog=False), timeout_s=120)
    outside = dict(os.environ)
    try:
        script = cluster.layout.work / "job.sh"
        program = cluster.layout.work / "rank.py"
        program.write_text(RANK)
        script.write_text(f"#!/bin/sh\nexec srun --ntasks-per-node={ranks_each} {sys.executable} {program}\n")
        args = ["sbatch", "--parsable", f"-N{nodes}", "--exclusive", f"--ntasks-per-node={ranks_each}", str(script)]
        job_id = int(cluster.run(args).stdout.split(";")[0])
        count = nodes * ranks_each
        conf = str(cluster.layout.slurm_conf)
        wait_for(lambda: _ranks(str(program), conf) >= count, 120, f"{count} ranks", poll_s=0.3)
        # The watch step's srun takes its configuration from here.
        os.environ.update(cluster.exports)
        return asyncio.run(_measure(cluster, job_id, ranks_each, repeats))
    finally:
        os.environ.clear()
        os.environ.update(outside)
        cluster.down()


def _ranks(program: str, conf: str) -> int:
    return sum(_is_rank(entry, program.encode(), conf) for entry in Path("/proc").glob("[0-9]*"))


def _is_rank(process: Path, program: bytes, conf: str) -> bool:
    try:
        mine = (process / "cmdline").read_bytes().split(b"\0")[1:2] == [program]
        return mine and f"SLURM_CONF={conf}".encode() in (process / "environ").read_bytes()
    except OSError:
        return False
