"""One look at a live job from outside: a watch step, one capture, and away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from slurm_robust.config import SuperviseConfig
from slurm_robust.slurm.client import Job
from slurm_robust.supervise.fleet import Fleet
from slurm_robust.supervise.watch import WatchStep

_POLL_S = 0.02


class SnapshotError(Exception):
    """No agent could be started; the message carries srun's words."""


async def take(
    job: Job, config: SuperviseConfig, timeout_s: float, *, count: int, every_s: float
) -> AsyncIterator[tuple[dict[str, bytes], list[str]]]:
    """Take the stacks of every rank of a running job, once or in several rounds with one watch step.

    Args:
        job: Running.
        config: The site's choices.
        timeout_s: For the agents' start and the first round together, and for each further round.
        count: Number of rounds.
        every_s: From the start of a round to that of the next; one that takes longer is followed by the next at once.

    Yields:
        For each round as it is there: the archive of each node (JSON), and the nodes that did not answer in time.

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
        for number in range(1, count + 1):
            next_s = time.monotonic() + every_s
            archives = fleet.expect(number)
            watch.tell("capture", id=number, round=number, timeout_s=min(config.capture_timeout_s, timeout_s))
            heard = set(fleet.heard_at_s)
            while time.monotonic() < deadline and not heard <= set(archives):
                await asyncio.sleep(_POLL_S)
            fleet.archives.pop(number, None)
            yield archives, sorted(set(job.nodes) - set(archives))
            if number < count:
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
                deadline = time.monotonic() + timeout_s
    finally:
        await watch.stop()
