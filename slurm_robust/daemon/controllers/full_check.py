"""The full check of a node as a job of the daemon's own account: how it is submitted, and what its end says."""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import dataclass
from typing import Literal

from slurm_robust.daemon.core import Core
from slurm_robust.model import JobRef
from slurm_robust.policy.cluster.recovery_step import ENDED
from slurm_robust.slurm.client import Job, Node
from slurm_robust.text import shortened

HELD = frozenset(("RESV_DEL_HOLD", "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED"))
"""States of a check that nobody but us would end: its reservation was deleted under it, for example."""
GONE_AFTER_S = 5.0
"""A job that Slurm does not show this long after it was submitted is gone."""


@dataclass(frozen=True)
class Verdict:
    """What a check came to; `word` is the evidence, or why it could not tell."""

    state: Literal["passed", "failed", "unknown"]
    word: str = ""
    cancel: bool = False
    """The job still stands in the queue, to no purpose."""


def over(job: Job) -> bool:
    """True where the job has ended and its nodes have let go."""
    return job.state in ENDED and not job.completing


def found(core: Core, name: str) -> Job | None:
    """A check of that name that is under way: of a life of the daemon that was killed before it wrote that down."""
    jobs = core.world.jobs.values()
    return next((j for j in jobs if j.name == name and j.user == core.account and j.state not in ENDED), None)


async def submit(core: Core, name: str, node: Node, reservation: str) -> JobRef:
    """Check this node, alone on it, inside that reservation."""
    minutes = max(1, math.ceil(core.config.quarantine.recheck_timeout_s / 60))
    args = [f"--job-name={name}", f"--reservation={reservation}", f"--nodelist={node.name}", "--nodes=1"]
    args += ["--exclusive", "--no-requeue", f"--time={minutes}", "--output=/dev/null", "--chdir=/"]
    # Without a daemon to cancel it, a check that cannot start would stay in the queue for ever.
    args.append(f"--deadline=now+{2 * minutes + 1}minutes")
    if node.partitions:
        args.append(f"--partition={node.partitions[0]}")
    command = core.config.quarantine.recheck_command or (
        *(sys.executable, "-m", "slurm_robust.cli.main"),
        *("check", "--stage", "full", "--tell-slurm"),
    )
    return await core.call(core.client.submit, args, f"#!/bin/sh\nexec {shlex.join(command)}\n")


def verdict(job: Job | None, job_id: int, since_s: float, limit_s: float) -> Verdict | None:
    """What the check says by now; None while it is still to say something.

    Args:
        job: As Slurm shows it, None where it does not.
        job_id: Its id.
        since_s: How long ago it was submitted.
        limit_s: How long it may wait for its start.
    """
    if job is None:
        return Verdict("unknown", f"recheck job {job_id} is gone") if since_s > GONE_AFTER_S else None
    if over(job):
        return _of_ended(job)
    if job.state in HELD:
        return Verdict("unknown", f"Slurm holds the recheck ({job.state}: {job.reason})", cancel=True)
    if job.state != "RUNNING" and not job.completing and since_s > limit_s:
        why = f"the recheck did not start in {limit_s:.0f} s; Slurm says: {job.reason}"
        return Verdict("unknown", why, cancel=True)
    return None


def _of_ended(job: Job) -> Verdict:
    sentence = job.comment.partition("srobust-check:")[2].strip()
    sentence = shortened("".join(c for c in sentence if c.isprintable()), 160)
    if job.state == "COMPLETED":
        return Verdict("passed")
    if job.state == "FAILED" and job.exit_code.startswith("1:"):
        return Verdict("failed", sentence.removeprefix("unfit:").strip() or "failed its recheck")
    return Verdict("unknown", f"the recheck ended {job.state} {job.exit_code} {sentence}".strip())
