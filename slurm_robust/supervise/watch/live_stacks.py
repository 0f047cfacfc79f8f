"""Takes the stacks of a running job without supervising it: a watch step, one capture or several, and its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from slurm_robust.config import SuperviseConfig
from slurm_robust.slurm.client import Job
from slurm_robust.supervise.agent.messages import TakeCapture
from slurm_robust.supervise.clock import CLOCK, Clock
from slurm_robust.supervise.watch.fleet import Fleet
from slurm_robust.supervise.watch.watch_step import WatchStep

_POLL_S = 0.02


class LiveStacksError(Exception):
    """No agent could be started; the message carries srun's error."""


@dataclass(frozen=True)
class LiveCapture:
    """One capture, counted from 1: the archive (JSON) of each node, and the nodes that did not answer in time."""

    round: int
    archives: dict[str, bytes]
    missing: list[str]


async def live_captures(
    job: Job,
    config: SuperviseConfig,
    timeout_s: float,
    every_s: float | None = None,
    count: int = 0,
    *,
    clock: Clock = CLOCK,
) -> AsyncGenerator[LiveCapture, None]:
    """Take the stacks of every rank of a running job, once or repeatedly.

    The first capture's `timeout_s` counts from the agents' start. The next ones follow every `every_s` (None for a
    single one), until the job ends or there are `count` of them (0 for no limit).

    Raises:
        LiveStacksError: the watch step ended before any agent answered.
    """
    fleet = Fleet("")
    log: list[str] = []
    watch = WatchStep(job.ref.job_id, config.tick_s, lambda m: fleet.feed(m, clock.now_s()), log.append, clock=clock)
    deadline_s = clock.monotonic_s() + timeout_s
    await watch.start(job.nodes, "")
    number = 0
    try:
        while clock.monotonic_s() < deadline_s and not set(job.nodes) <= set(fleet.heard_at_s) and not log:
            await clock.sleep(_POLL_S)
        if log and not fleet.heard_at_s:
            raise LiveStacksError(log[0])
        while True:
            number += 1
            began_s = clock.monotonic_s()
            archives = fleet.expect(number)
            watch.send(TakeCapture(number, number, min(config.capture_timeout_s, timeout_s)))
            heard = set(fleet.heard_at_s)
            while clock.monotonic_s() < deadline_s and not heard <= set(archives) and not (log and number > 1):
                await clock.sleep(_POLL_S)
            fleet.archives.pop(number, None)
            if number > 1 and not archives:
                return  # the agents ended with their job
            yield LiveCapture(number, archives, sorted(set(job.nodes) - set(archives)))
            if every_s is None or number == count:
                return
            await clock.sleep(max(0.0, began_s + every_s - clock.monotonic_s()))
            deadline_s = clock.monotonic_s() + timeout_s
    finally:
        await watch.stop()
