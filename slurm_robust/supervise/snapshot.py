"""One look at a live job from outside: a watch step, one capture, and away."""

from __future__ import annotations

import asyncio
import time

from slurm_robust.config import SuperviseConfig
from slurm_robust.slurm.client import Job
from slurm_robust.supervise.fleet import Fleet
from slurm_robust.supervise.watch import WatchStep

_POLL_S = 0.02


class SnapshotError(Exception):
    """No agent could be started; the message carries srun's words."""


async def take(job: Job, config: SuperviseConfig, timeout_s: float) -> tuple[dict[str, bytes], list[str]]:
    """Take the stacks of every rank of a running job.

    Returns:
        The archive of each node (JSON), and the nodes that did not answer in time.

    Raises:
        SnapshotError: the watch step ended before any agent spoke.
    """
    fleet = Fleet("")
    log: list[str] = []
    watch = WatchStep(job.ref.job_id, config.tick_s, lambda m: fleet.feed(m, time.time()), log.append)
    deadline = time.monotonic() + timeout_s
    await watch.start(job.nodes, "")
    try:
        while time.monotonic() < deadline and not set(job.nodes) <= set(fleet.heard_at_s) and not log:
            await asyncio.sleep(_POLL_S)
        if log and not fleet.heard_at_s:
            raise SnapshotError(log[0])
        archives = fleet.expect(1)
        watch.tell("capture", id=1, round=1, timeout_s=min(config.capture_timeout_s, timeout_s))
        heard = set(fleet.heard_at_s)
        while time.monotonic() < deadline and not heard <= set(archives):
            await asyncio.sleep(_POLL_S)
    finally:
        await watch.stop()
    return archives, sorted(set(job.nodes) - set(archives))
