"""Runs a node's full check as a job of the daemon's account: how it is submitted, and what its result means."""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import dataclass, replace
from typing import Literal

from slurm_robust.core.model import REASON_PREFIX, Action, ActionKind
from slurm_robust.core.text import printable
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.own_jobs import NEVER_STARTS, OwnJobs
from slurm_robust.marks.remedy import remedy_of, tagged
from slurm_robust.policy.cluster.recovery_step import ENDED
from slurm_robust.slurm.client import Job, Node

HELD = frozenset(("RESV_DEL_HOLD", "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED"))
"""States of a check that only the daemon would end: its reservation was deleted, for example."""
REFUSED_AFTER_S = 2.0
"""A waiting job whose reason does not end by waiting is taken for refused after this time."""
NO_VERDICT = "is slurm_robust installed there? On the node: srobust check --stage full"
GONE_AFTER_S = 5.0
"""A job that Slurm does not show this long after it was submitted is gone."""


@dataclass(frozen=True)
class CheckResult:
    """The result of a check; `detail` is the evidence, or why the check was inconclusive."""

    state: Literal["passed", "failed", "unknown"]
    detail: str = ""
    cancel: bool = False
    """The job is still in the queue and serves no purpose."""


def over(job: Job) -> bool:
    """Return whether the job has ended and released its nodes."""
    return job.state in ENDED and not job.completing


def running_check(context: DaemonContext, name: str, since_s: float = math.inf) -> Job | None:
    """Return a check of that name that has not ended: the daemon may have been killed before it wrote the job id down.

    A check that was submitted since `since_s` counts even if it has ended.
    """
    jobs = [j for j in context.readings.jobs.values() if j.name == name and j.user == context.account]
    return next((j for j in jobs if j.state not in ENDED or j.submit_at_s >= since_s), None)


def sbatch_args(name: str, node: Node, own: OwnJobs, *, reservation: str, minutes: int) -> list[str]:
    """Options of a job that has its nodes for itself, within that reservation; without the nodes' names."""
    args = [f"--job-name={name}", f"--reservation={reservation}"]
    # Where a prolog refuses a job that may not be requeued, slurmd 22.05 waits for that prolog half a minute longer and
    # then drains the node once more (`Prolog error`), also a node that was mended and resumed meanwhile.
    args += ["--exclusive", "--requeue", f"--time={minutes}", "--output=/dev/null", "--chdir=/"]
    # Without a daemon to cancel it, a check that cannot start would stay in the queue for ever.
    return [*args, f"--deadline=now+{2 * minutes + 1}minutes", *own.options(node.partitions)]


def check_action(kind: ActionKind, name: str, node: Node, own: OwnJobs, *, reservation: str, reason: str) -> Action:
    """Return the action that submits a check of this node: exclusive, and within that reservation."""
    config = own.context.config.quarantine
    minutes = max(1, math.ceil(config.recheck_timeout_s / 60))
    args = sbatch_args(name, node, own, reservation=reservation, minutes=minutes)
    args += [f"--nodelist={node.name}", "--nodes=1"]
    command = config.recheck_command or (
        *(sys.executable, "-m", "slurm_robust.cli.main"),
        *("check", "--stage", "full", "--tell-slurm"),
    )
    script = f"#!/bin/sh\nexec {shlex.join(command)}\n"
    return Action(kind, node.name, reason, {"sbatch": args, "script": script})


def after(prelude: str, check: Action) -> Action:
    """Return the same check, with these lines of a shell script run first."""
    script = str(check.args["script"]).replace("\nexec ", f"\n{prelude}exec ", 1)
    return replace(check, args={**check.args, "script": script})


async def drain(actor: Actor, breaker: Breaker, key: str, node: str, sentence: str) -> bool:
    """Drain an unfit node; True once Slurm, read again, shows it."""
    context, action = actor.context, Action(ActionKind.DRAIN, node, f"{REASON_PREFIX} {sentence}")
    await actor.perform(key, action)
    await context.read_nodes()
    now = context.readings.nodes.get(node)
    if now is None or not now.drained:
        return False
    context.journal.note_result(key, action, context.now_s())
    breaker.count_drains()
    return True


def result_of(
    job: Job | None, job_id: int, since_s: float, limit_s: float, *, own_command: bool = True
) -> CheckResult | None:
    """Return the check's result; None while it has none yet. `job` is None if Slurm does not show it.

    It was submitted `since_s` ago, and may wait `limit_s` for its start. Our own command says in words that a node is
    unfit: its exit code 1 alone may be Python's, on a node without the package. A site's command has no words.
    """
    if job is None:
        return CheckResult("unknown", f"recheck job {job_id} is gone") if since_s > GONE_AFTER_S else None
    if over(job):
        return _result_of_ended(job, own_command=own_command)
    why = _why_no_start(job, since_s, limit_s)
    return CheckResult("unknown", why, cancel=True) if why else None


def _why_no_start(job: Job, since_s: float, limit_s: float) -> str:
    """Return why to give up waiting for a check that has not ended; empty to wait."""
    if job.state in HELD:
        return f"Slurm holds the recheck ({job.state}: {job.reason})"
    if job.state == "PENDING" and job.restart_count:
        return f"the node refused the recheck, or was lost with it: {job.reason}"
    if job.state == "PENDING" and since_s > REFUSED_AFTER_S and NEVER_STARTS.search(job.reason):
        return f"Slurm does not start the recheck: {job.reason}"
    if job.state != "RUNNING" and not job.completing and since_s > limit_s:
        return f"the recheck did not start in {limit_s:.0f} s; Slurm's reason: {job.reason}"
    return ""


def _result_of_ended(job: Job, *, own_command: bool) -> CheckResult:
    sentence = printable(job.comment.partition("srobust-check:")[2].strip(), bad="")
    sentence = tagged(sentence, remedy_of(sentence), 160)
    if job.state == "COMPLETED":
        return CheckResult("passed")
    if job.state == "FAILED" and job.exit_code.startswith("1:"):
        if own_command and not sentence.startswith("unfit:"):
            return CheckResult("unknown", f"the recheck ended with exit code 1 and no verdict: {NO_VERDICT}")
        return CheckResult("failed", sentence.removeprefix("unfit:").strip() or "failed its recheck")
    return CheckResult("unknown", f"the recheck ended {job.state} {job.exit_code} {sentence}".strip())
