"""Lets jobs go that Slurm holds because a node of ours to judge refused to start them, and no others."""

from __future__ import annotations

from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.controllers.recoveries import Recoveries
from slurm_robust.daemon.core import Core
from slurm_robust.daemon.store.node_ledger import Ledger
from slurm_robust.model import Action, ActionKind
from slurm_robust.policy.cluster.launch_failed import launch_failed, refused_by
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.errors import SlurmError

AGAIN_S = 10.0
"""Between two tries for one hold."""
TRIES = 3
MAX_A_DAY = 5
"""Releases of one job; past that a person looks at what its nodes have."""
DAY_S = 86400.0


class HeldKeeper:
    """Looks at the queue after each reading of the nodes; recoveries look after their own jobs."""

    def __init__(self, core: Core, actor: Actor, recoveries: Recoveries, ledger: Ledger) -> None:
        self.core, self.actor, self.recoveries, self.ledger = core, actor, recoveries, ledger

    async def tick(self) -> None:
        """Release what is ours to release."""
        held = [j for j in self.core.world.jobs.values() if launch_failed(j)]
        for job in held:
            node = refused_by(job, self.core.world.nodes)
            if node is None or self.recoveries.of_job(job.ref.job_id) is not None:
                continue
            try:
                await self._release(job, node)
            except SlurmError as error:
                self.core.alert("held.waits", f"job {job.ref.address}: {error}", key=job.ref.address)

    async def _release(self, job: Job, node: Node) -> None:
        core, address = self.core, job.ref.address
        words = f"held because {node.name} refused to start it, which is drained ({node.reason})"
        if not core.acting:
            core.info("held.observed", f"job {address}: would be released: {words}", key=address)
            return
        key = f"held.{job.ref.job_id}.r{job.restart_count}.{job.submit_at_s}"
        done = next(iter(core.journal.actions(key)), None)
        since_s = core.now_s() - ((done and done.called_at_s) or 0.0)
        if done is not None and (done.calls >= TRIES or 0 <= since_s < AGAIN_S * done.calls):
            return
        if done is None and self.ledger.releases(address, core.now_s() - DAY_S) >= MAX_A_DAY:
            core.alert("held.too_often", f"job {address}: {words}; released {MAX_A_DAY} times in a day", key=address)
            return
        action = Action(ActionKind.RELEASE_JOB, address, words)
        await self.actor.perform(key, action)
        now_job = await core.call(core.client.job, job.ref)
        if now_job is None or not launch_failed(now_job):
            core.journal.note_result(key, action, core.now_s())
