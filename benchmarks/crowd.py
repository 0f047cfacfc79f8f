"""How much of a processor the supervisor needs for thousands of agents, which `fake_agents.py` plays.

All that the supervisor runs for each message and at each look is real: the watch step's reader, the decoder, the
fleet's book, the assessment. Only srun is not: carrying the lines of so many nodes is its work, and is not counted.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from slurm_robust.config.site import Config
from slurm_robust.supervise.clock import Clock
from slurm_robust.supervise.reported.agents import Agents
from slurm_robust.supervise.reported.suspicion import SilenceLevel
from slurm_robust.supervise.supervisor import POLL_S
from slurm_robust.supervise.watch.attempt_state import AttemptSources, AttemptState

_FAKE = Path(__file__).with_name("fake_agents.py")
_START_S = 120.0


@dataclass(frozen=True)
class Crowd:
    """What one run with many agents cost.

    Attributes:
        cpu_share: Processor seconds a second, once all agents are known.
        start_cpu_s: Processor seconds until every rank was known.
        messages_per_s: Taken in while it was measured.
        look_ms: Mean time of one look at all ranks, milliseconds.
        peak_mib: The process's largest resident size so far, MiB.
    """

    cpu_share: float
    start_cpu_s: float
    messages_per_s: float
    look_ms: float
    peak_mib: float


async def _run(agents: int, ranks: int, seconds: float) -> Crowd:
    config = Config().supervise
    nodes = tuple(f"node{a:04d}" for a in range(agents))
    attempt = AttemptState("", AttemptSources(1, nodes), Clock())
    taken = 0

    def feed(message: dict[str, object]) -> None:
        nonlocal taken
        taken += 1
        attempt.fleet.feed(message, time.time())

    log: list[str] = []
    watch = Agents(1, config.tick_s, feed, log.append)
    looked_s, looks = 0.0, 0

    async def look_until(done_at_s: float) -> None:
        nonlocal looked_s, looks
        looked_after_at = 0.0
        while time.monotonic() < done_at_s:
            await asyncio.sleep(POLL_S)
            began = time.process_time()
            attempt.read_outputs()
            if time.monotonic() - looked_after_at >= 1.0:
                looked_after_at = time.monotonic()
                await watch.look_after(nodes, attempt.fleet.heard_at_s, 7.0)
            _ = attempt.step  # what the supervisor tells of it
            if attempt.assess(config).level is not SilenceLevel.QUIET:
                raise RuntimeError("a clean run was suspected; the machine is too busy for this measurement")
            looked_s += time.process_time() - began
            looks += 1

    began_cpu_s, deadline = time.process_time(), time.monotonic() + _START_S
    await watch.start(nodes, "")
    try:
        while len(attempt.fleet.ranks) < agents * ranks or not attempt.has_progress:
            if log or time.monotonic() > deadline:
                raise RuntimeError(f"the agents did not come: {log or 'too slow'}")
            await asyncio.sleep(POLL_S)
        start_cpu_s = time.process_time() - began_cpu_s
        await look_until(time.monotonic() + 2.0)  # the backlog of the start
        looked_s, looks, taken_before = 0.0, 0, taken
        cpu_s, clock_s = time.process_time(), time.monotonic()
        await look_until(clock_s + seconds)
        cpu_s, clock_s = time.process_time() - cpu_s, time.monotonic() - clock_s
    finally:
        await watch.stop()
    if attempt.fleet.garbled or watch.skipped_lines:
        raise RuntimeError(f"{attempt.fleet.garbled} messages and {watch.skipped_lines} lines were not understood")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Crowd(cpu_s / clock_s, start_cpu_s, (taken - taken_before) / clock_s, looked_s / looks * 1000, peak_mib)


def measure(agents: int, ranks: int, *, rate: float, seconds: float, phase: str = "train") -> Crowd:
    """Supervise so many agents of so many ranks each, at `rate` messages a second of each, for `seconds`."""
    with tempfile.TemporaryDirectory(prefix="srobust-crowd-") as folder:
        srun = Path(folder) / "srun"
        srun.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{_FAKE}" {agents} {ranks} {rate:g} {phase}\n')
        srun.chmod(0o755)
        path = os.environ.get("PATH", "")
        os.environ["PATH"] = f"{folder}:{path}"
        try:
            return asyncio.run(_run(agents, ranks, seconds))
        finally:
            os.environ["PATH"] = path
