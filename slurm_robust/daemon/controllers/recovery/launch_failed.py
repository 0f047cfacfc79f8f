"""Releases jobs that Slurm holds after our prolog refused to start them, and no other held jobs."""

from __future__ import annotations

from slurm_robust.core.model import Action, ActionKind
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.policy.cluster.launch_failed import launch_failed, refused_by
from slurm_robust.slurm.client import Job, Node

AGAIN_S = 10.0
"""The time between two tries for one hold."""
TRIES = 3
MAX_A_DAY = 5
"""The most releases of one job in a day; after them a person must find out what is wrong with its nodes."""


class LaunchFailed:
    """Checks the queue after each reading of the nodes; jobs with an open recovery are left to that."""

    def __init__(self, context: DaemonContext, actor: Actor, recoveries: Recoveries, ledger: NodeLedger) -> None:
        self.context, self.actor, self.recoveries, self.ledger = context, actor, recoveries, ledger

    async def tick(self) -> None:
        """Release the jobs that our prolog refused."""
        held = [j for j in self.context.readings.jobs.values() if launch_failed(j)]
        for job in held:
            node = refused_by(job, self.context.readings.nodes)
            if node is None or self.recoveries.of_job(job.ref.job_id) is not None:
                continue
            with self.context.guarded("held.waits", f"job {job.ref.address}", key=job.ref.address):
                await self._release(job, node)

    async def _release(self, job: Job, node: Node) -> None:
        context, address = self.context, job.ref.address
        why = f"held because {node.name} refused to start it, which is drained ({node.reason})"
        if not context.acting:
            context.info("held.observed", f"job {address}: would be released: {why}", key=address)
            return
        key = f"held.{job.ref.job_id}.r{job.restart_count}.{job.submit_at_s}"
        done = next(iter(context.journal.actions(key)), None)
        since_s = context.now_s() - ((done and done.called_at_s) or 0.0)
        if done is not None and (done.calls >= TRIES or 0 <= since_s < AGAIN_S * done.calls):
            return
        if done is None and self.ledger.releases(address, context.now_s() - DAY_S) >= MAX_A_DAY:
            context.alert("held.too_often", f"job {address}: {why}; released {MAX_A_DAY} times in a day", key=address)
            return
        action = Action(ActionKind.RELEASE_JOB, address, why)
        await self.actor.perform(key, action)
        now_job = await context.call(context.client.job, job.ref)
        if now_job is None or not launch_failed(now_job):
            context.journal.note_result(key, action, context.now_s())
