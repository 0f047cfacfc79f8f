"""Gives waiting jobs back the nodes that a recovery had them leave out, once nothing stands against these any more."""

from __future__ import annotations

from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.controllers.recoveries import Recoveries
from slurm_robust.daemon.core import Core
from slurm_robust.daemon.store.node_ledger import Ledger
from slurm_robust.policy.cluster.recovery_step import fit_again, lift
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import expand

AGAIN_S = 60.0
"""After so long a job is looked at again for the same nodes: slurmctld may have forgotten."""


class ExclusionKeeper:
    """Looks at levels, after each reading of the nodes; a recovery under way looks after its own job."""

    def __init__(self, core: Core, actor: Actor, recoveries: Recoveries, ledger: Ledger) -> None:
        self.core, self.actor, self.recoveries, self.ledger = core, actor, recoveries, ledger
        self._looked: dict[int, tuple[frozenset[str], float]] = {}
        """Which nodes a waiting job was looked at for, and when."""

    def begin_anew(self) -> None:
        """Look at every job again: the clock was set back."""
        self._looked.clear()

    async def tick(self) -> None:
        """A job that waits after its recovery was given up, or was put back later, could wait for ever else."""
        if not self.core.acting:
            return
        waiting = {
            i: j
            for i, j in self.core.world.jobs.items()
            if j.state == "PENDING" and j.restart_count and not j.completing and self.recoveries.of_job(i) is None
        }
        self._looked = {i: seen for i, seen in self._looked.items() if i in waiting}
        for job in waiting.values():
            try:
                await self._look(job)
            except SlurmError as error:  # noqa: PERF203 (one job's trouble does not hold up the others)
                self.core.alert("exclusion.waits", f"job {job.ref.address}: {error}", key=job.ref.address)

    async def _look(self, job: Job) -> None:
        core, now_s = self.core, self.core.now_s()
        done = core.journal.recoveries(job.ref.job_id, job.user)
        if not done or job.restart_count <= done[0][1].restart:
            return
        row, last = done[0]
        bad = {n for _, r in done for n in r.bad} - {*expand(last.own_exclude)}
        fit = fit_again(bad, core.world.nodes, frozenset(q.node for q in self.ledger.quarantines()))
        seen, at_s = self._looked.get(job.ref.job_id, (frozenset[str](), 0.0))
        if not fit or (fit <= seen and now_s < at_s + AGAIN_S):
            return
        now_job = await core.call(core.client.job, job.ref)
        if now_job is None or now_job.state != "PENDING" or now_job.completing:
            return
        if back := fit & {*expand(now_job.exclude or "")}:
            action = lift(job.ref.address, back, now_job)
            await self.actor.perform(row.key, action)
            now_job = await core.call(core.client.job, job.ref)
            if now_job is None or not back & {*expand(now_job.exclude or "")}:
                core.journal.note_result(row.key, action, now_s)
        self._looked[job.ref.job_id] = (fit, now_s)
