"""Detects nodes that fail under running jobs, without any claim; holds the jobs' seats until Slurm requeues them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.recovery.claim_intake import ClaimIntake
from slurm_robust.daemon.controllers.recovery.incident_rows import incident_key
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.controllers.recovery.unasked import Unasked, begin
from slurm_robust.daemon.own_jobs import is_own
from slurm_robust.policy.cluster.node_states import LOST_GRES, lost_gres
from slurm_robust.policy.cluster.recovery_plan import NODE_LOST
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.values import fold

PATIENCE_S = 1.0
"""The time for which Slurm must show the node as silent: one lost ping is not a failure."""
STORM_SHARE = 0.5
"""The share of silent nodes (of at least four) above which the network or slurmctld is at fault, not the nodes."""


def name_of(gone: list[str]) -> str:
    """Return the incident's name: each further lost node makes it another incident."""
    return f"node-{'-'.join(gone)}"[:64]


def fell_back(old: Job, now: Job) -> bool:
    """Return whether a job that ran is being requeued, or waits in the queue again."""
    ending = now.completing or now.state == "COMPLETING"
    return now.restart_count == old.restart_count + 1 and (ending or now.state == "PENDING")


def newcomers(jobs: Iterable[Job], old: Job) -> frozenset[str]:
    """Nodes of a job that another job has been given since: they are not its own any more."""
    others = (j for j in jobs if j.ref.job_id != old.ref.job_id and j.state == "RUNNING")
    return frozenset(n for j in others if j.start_at_s > old.start_at_s for n in j.nodes if n in old.nodes)


class NodeFailures:
    """Compares each reading of the nodes with the jobs that run on them."""

    def __init__(self, context: DaemonContext, intake: ClaimIntake, recoveries: Recoveries) -> None:
        self.context, self.intake, self.recoveries = context, intake, recoveries
        self._silent_since_s: dict[str, float] = {}
        self._lost_gres: tuple[str, ...] = ()
        self._ran: dict[int, Job] = {}
        """Protected jobs as they were in the last reading that showed them running."""

    @property
    def suspicious(self) -> bool:
        """True while a node under a protected job is silent: the nodes are then read more often."""
        return bool(self._silent_since_s)

    def restart_timers(self) -> None:
        """Wait anew, since the clock was set back."""
        self._silent_since_s.clear()

    def protected(self, job: Job) -> bool:
        """Return whether this job is brought back after the failure of a node."""
        return self._protected(job, self.intake.supervised)

    def _protected(self, job: Job, supervised: Container[int]) -> bool:
        whole = job.state == "RUNNING" and not job.completing and job.requeueable
        if not whole or is_own(job, self.context.account) or job.hetjob_id or job.ref.het_offset is not None:
            return False
        return self.context.config.daemon.protect == "all" or job.ref.job_id in supervised

    def note_jobs(self) -> bool:
        """Note where jobs run, after each reading; return True if Slurm requeued a job for an unknown reason.

        Slurm gives up a frozen node without ever calling it silent, and requeues its job: only the remembered nodes of
        the job show that a node was the reason.
        """
        jobs, supervised = self.context.readings.jobs, self.intake.supervised
        fell = {i: old for i, old in self._ran.items() if i in jobs and fell_back(old, jobs[i])}
        fell = {i: old for i, old in fell.items() if self.recoveries.of_job(i) is None}
        self._ran = {**{j.ref.job_id: j for j in jobs.values() if self._protected(j, supervised)}, **fell}
        return bool(fell)

    async def tick(self) -> None:
        """Find lost nodes, after each reading of the nodes."""
        self._report_lost_gres()
        supervised = self.intake.supervised
        jobs = [j for j in self.context.readings.jobs.values() if self._protected(j, supervised)]
        silent_nodes = self._silent_for_long(jobs)
        if self._storm():
            return
        for job in jobs:
            gone = sorted(silent_nodes & set(job.nodes))
            if gone and not self._followed(job, gone):
                await self._lost(job, gone)
        await self._requeued_by_slurm()

    def _silent_for_long(self, jobs: list[Job]) -> frozenset[str]:
        """Nodes under these jobs that have not responded for longer than one lost ping."""
        now_s, quiet = self.context.now_s(), self.context.picture.silent
        lost = {name for j in jobs for name in j.nodes if name in quiet} if quiet else set[str]()
        self._silent_since_s = {name: self._silent_since_s.get(name, now_s) for name in lost}
        return frozenset(name for name, at_s in self._silent_since_s.items() if now_s - at_s >= PATIENCE_S)

    def _storm(self) -> bool:
        """Return whether so many nodes are silent that the cause is not in the nodes."""
        nodes = self.context.readings.nodes
        quiet = sum(1 for n in self.context.picture.silent.values() if "NOT_RESPONDING" in n.flags)
        if len(nodes) < 4 or quiet <= STORM_SHARE * len(nodes):
            return False
        text = f"{quiet} of {len(nodes)} nodes do not respond at once: no fault of single nodes, nothing is done"
        self.context.alert("nodes.storm", text, key="storm")
        return True

    def _followed(self, job: Job, gone: list[str]) -> bool:
        """Return whether an open recovery of the job deals with these nodes already."""
        under_way = self.recoveries.of_job(job.ref.job_id)
        if under_way is None:
            return False
        return under_way.recovery.kind != NODE_LOST or set(gone) <= set(under_way.recovery.bad)

    async def _requeued_by_slurm(self) -> None:
        """Jobs that Slurm requeued because it gave up one of their nodes, which it had never called silent."""
        readings = self.context.readings
        if readings.nodes_at_s < readings.jobs_at_s:
            return
        for job_id, old in list(self._ran.items()):
            now = readings.jobs.get(job_id)
            if now is None or not fell_back(old, now):
                continue
            del self._ran[job_id]
            gone = sorted(n for n in old.nodes if n in readings.nodes and readings.nodes[n].state == "DOWN")
            if gone and self.recoveries.of_job(job_id) is None:
                await self._lost(old, gone)

    def _report_lost_gres(self) -> None:
        lost = lost_gres(self.context.picture.gres_used.values())
        if lost and lost != self._lost_gres:
            self.context.alert("nodes.lost_gres", f"{fold(lost)}: {LOST_GRES}", key="lost_gres")
        self._lost_gres = lost

    async def _lost(self, job: Job, gone: list[str]) -> None:
        context, name = self.context, name_of(gone)
        key = incident_key(job, name)
        if context.journal.incident(key) is not None:
            return
        now_job = await self._as_it_ran(job)
        if now_job is None:
            return
        await context.read_reservations()
        reason = f"{', '.join(gone)} stopped responding under job {job.ref.address}"
        context.alert("node_not_responding", reason, key=key)
        asked = Unasked(NODE_LOST, name, now_job, gone, reason, suspects_to="", fault_at_s=context.now_s())
        begin(context, self.intake, self.recoveries, asked)

    async def _as_it_ran(self, job: Job) -> Job | None:
        """Read the job again, with the nodes it ran on; None if it is not to be brought back any more."""
        context = self.context
        now_job = await context.call(context.client.job, job.ref)
        if now_job is not None and fell_back(job, now_job):
            await context.read_jobs()
            taken = newcomers(context.readings.jobs.values(), job)
            nodes = tuple(n for n in job.nodes if n not in taken)
            return replace(job, nodes=nodes, exclude=now_job.exclude, reservation=now_job.reservation)
        if now_job is None or not self.protected(now_job) or now_job.restart_count != job.restart_count:
            return None
        return now_job
