"""Takes the stacks of a running job without supervising it: a watch step, one capture or several, and the end."""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.slurm.client import Job
from slurm_robust.supervise.agent.messages import TakeCapture
from slurm_robust.supervise.clock import CLOCK
from slurm_robust.supervise.reported.fleet import Fleet
from slurm_robust.supervise.reported.watch_step import WatchStep

_POLL_S = 0.02


class LiveStacksError(Exception):
    """No agent could be started; the message carries srun's error."""


def account_for(job: Job, settings: Mapping[str, str]) -> pwd.struct_passwd | None:
    """Return the account that starts the watch step; None for the account of this process.

    Slurm lets only a job's owner and SlurmUser add a step to it. Root is neither at most sites, and becomes the owner.

    Args:
        job: The running job.
        settings: Slurm's settings, by the names of slurm.conf.

    Raises:
        LiveStacksError: the job's owner is not known on this machine.
    """
    slurm_user = settings.get("SlurmUser", "root")
    if os.geteuid() != 0 or job.user == "root" or slurm_user.partition("(")[0] in ("root", "0"):
        return None
    try:
        return pwd.getpwnam(job.user)
    except KeyError:
        text = f"Slurm lets only {job.user}, its owner, and {slurm_user} add a step to job {job.ref.address}"
        raise LiveStacksError(f"{text}, and this machine does not know {job.user}") from None


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
    account: pwd.struct_passwd | None = None,
) -> AsyncGenerator[LiveCapture, None]:
    """Take the stacks of every rank of a running job, once or repeatedly.

    The first capture's `timeout_s` counts from the agents' start. The next ones follow every `every_s` (None for a
    single one), until the job ends or there are `count` of them (0 for no limit). `account` is from `account_for`.

    Raises:
        LiveStacksError: the watch step ended before any agent answered.
    """
    clock, fleet = CLOCK, Fleet("")
    log: list[str] = []
    watch = WatchStep(
        job.ref.job_id,
        config.tick_s,
        lambda m: fleet.feed(m, clock.now_s()),
        log.append,
    )
    watch.account = account
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
            archives = {node: archive for node, archive in archives.items() if node in job.nodes}
            if number > 1 and not archives:
                return  # the agents ended with their job
            yield LiveCapture(number, archives, sorted(set(job.nodes) - set(archives)))
            if every_s is None or number == count:
                return
            await clock.sleep(max(0.0, began_s + every_s - clock.monotonic_s()))
            deadline_s = clock.monotonic_s() + timeout_s
    finally:
        await watch.stop()
