"""Looks at a live job from outside: a watch step, one capture or several, and away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from slurm_robust.config import SuperviseConfig
from slurm_robust.slurm.client import Job
from slurm_robust.supervise.watch.fleet import Fleet
from slurm_robust.supervise.watch.watch_step import WatchStep

_POLL_S = 0.02


class SnapshotError(Exception):
    """No agent could be started; the message carries srun's words."""


@dataclass(frozen=True)
class Look:
    """One capture.

    Attributes:
        round: 1 for the first.
        archives: Of each node that answered (JSON).
        missing: The nodes that did not answer in time.
    """

    round: int
    archives: dict[str, bytes]
    missing: list[str]


async def looks(
    job: Job, config: SuperviseConfig, timeout_s: float, every_s: float | None = None, count: int = 0
) -> AsyncGenerator[Look, None]:
    """Take the stacks of every rank of a running job, once or again and again.

    Args:
        job: Running.
        config: For the agents' and the capture's times.
        timeout_s: For one look, the first one with the agents' start.
        every_s: From one look to the next; None for a single one. It ends with the job.
        count: Looks at most; 0 for no end.

    Raises:
        SnapshotError: the watch step ended before any agent spoke.
    """
    fleet = Fleet("")
    log: list[str] = []
    watch = WatchStep(job.ref.job_id, config.tick_s, lambda m: fleet.feed(m, time.time()), log.append)
    deadline = time.monotonic() + timeout_s
    await watch.start(job.nodes, "")
    number = 0
    try:
        while time.monotonic() < deadline and not set(job.nodes) <= set(fleet.heard_at_s) and not log:
            await asyncio.sleep(_POLL_S)
        if log and not fleet.heard_at_s:
            raise SnapshotError(log[0])
        while True:
            number += 1
            began = time.monotonic()
            archives = fleet.expect(number)
            left_s = min(config.capture_timeout_s, timeout_s)
            watch.tell("capture", id=number, round=number, timeout_s=left_s)
            heard = set(fleet.heard_at_s)
            while time.monotonic() < deadline and not heard <= set(archives) and not (log and number > 1):
                await asyncio.sleep(_POLL_S)
            fleet.archives.pop(number, None)
            if number > 1 and not archives:
                return  # the agents ended with their job
            yield Look(number, archives, sorted(set(job.nodes) - set(archives)))
            if every_s is None or number == count:
                return
            await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))
            deadline = time.monotonic() + timeout_s
    finally:
        await watch.stop()
