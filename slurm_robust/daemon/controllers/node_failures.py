"""Sees nodes fail under running jobs, without a word of any wrapper, and holds the jobs' seats until Slurm requeues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slurm_robust.daemon.controllers.claim_intake import Intake, incident_key, usage_of
from slurm_robust.daemon.controllers.recoveries import Recoveries
from slurm_robust.daemon.core import Core
from slurm_robust.daemon.store.journal import CLOSED, IncidentRow
from slurm_robust.model import SignalKind
from slurm_robust.policy.cluster.node_states import LOST_GRES, lost_gres
from slurm_robust.policy.cluster.recovery_plan import NODE_LOST, Recovery, Refusal, check_caps, plan
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.values import fold

PATIENCE_S = 1.0
"""Silence that Slurm must show this long: one lost ping is no failure."""
STORM_SHARE = 0.5
"""With more than this share of (at least four) nodes silent, the network or slurmctld is at fault, not the nodes."""


def silent(node: Node) -> bool:
    """True where Slurm itself says that the node does not answer, or gave it up."""
    return "NOT_RESPONDING" in node.flags or node.state == "DOWN"


def name_of(gone: list[str]) -> str:
    """The incident's name: every further node lost makes it another one."""
    return f"node-{'-'.join(gone)}"[:64]


def fell_back(old: Job, now: Job) -> bool:
    """True where a job that ran is on its way back into the queue, or there already."""
    ending = now.completing or now.state == "COMPLETING"
    return now.restart_count == old.restart_count + 1 and (ending or now.state == "PENDING")


def newcomers(jobs: Iterable[Job], old: Job) -> frozenset[str]:
    """Nodes of a job that another one was given after it: they are not its own any more."""
    others = (j for j in jobs if j.ref.job_id != old.ref.job_id and j.state == "RUNNING")
    return frozenset(n for j in others if j.start_at_s > old.start_at_s for n in j.nodes if n in old.nodes)


class NodeWatch:
    """Compares each reading of the nodes with the jobs that run on them."""

    def __init__(self, core: Core, intake: Intake, recoveries: Recoveries) -> None:
        self.core, self.intake, self.recoveries = core, intake, recoveries
        self._silent_since_s: dict[str, float] = {}
        self._lost_gres: tuple[str, ...] = ()
        self._ran: dict[int, Job] = {}
        """Protected jobs as they were when they were last seen running."""

    @property
    def suspicious(self) -> bool:
        """True while some node under a protected job is silent: then the nodes are read more often."""
        return bool(self._silent_since_s)

    def begin_anew(self) -> None:
        """Start every wait again: the clock was set back."""
        self._silent_since_s.clear()

    def protected(self, job: Job) -> bool:
        """True where this job is brought back after the failure of a node."""
        whole = job.state == "RUNNING" and not job.completing and job.requeueable
        if not whole or job.hetjob_id or job.ref.het_offset is not None:
            return False
        return self.core.config.daemon.protect == "all" or job.ref.job_id in self.intake.supervised

    def note_jobs(self) -> bool:
        """After each reading of the jobs; True where one fell back into the queue and nobody here knows why.

        Slurm gives a frozen node up without ever calling it silent, and has requeued the job then: only who remembers
        where it ran can tell that its node was the reason.
        """
        jobs = self.core.world.jobs
        fell = {i: old for i, old in self._ran.items() if i in jobs and fell_back(old, jobs[i])}
        fell = {i: old for i, old in fell.items() if self.recoveries.of_job(i) is None}
        self._ran = {**{j.ref.job_id: j for j in jobs.values() if self.protected(j)}, **fell}
        return bool(fell)

    async def tick(self) -> None:
        """After each reading of the nodes."""
        core, nodes = self.core, self.core.world.nodes
        now_s = core.now_s()
        self._tell_of_lost_gres()
        jobs = [j for j in core.world.jobs.values() if self.protected(j)]
        lost = {name for j in jobs for name in j.nodes if name in nodes and silent(nodes[name])}
        self._silent_since_s = {name: self._silent_since_s.get(name, now_s) for name in lost}
        quiet = sum(1 for n in nodes.values() if "NOT_RESPONDING" in n.flags)
        if len(nodes) >= 4 and quiet > STORM_SHARE * len(nodes):
            words = f"{quiet} of {len(nodes)} nodes do not respond at once: waiting, this is no fault of single nodes"
            core.alert("nodes.storm", words, key="storm")
            return
        sure = {name for name, at_s in self._silent_since_s.items() if now_s - at_s >= PATIENCE_S}
        for job in jobs:
            gone = sorted(sure & set(job.nodes))
            followed = self.recoveries.of_job(job.ref.job_id)
            if not gone or (
                followed and (followed.recovery.kind != NODE_LOST or set(gone) <= set(followed.recovery.bad))
            ):
                continue
            await self._lost(job, gone)
        for job_id, old in list(self._ran.items()):
            now = core.world.jobs.get(job_id)
            if now is None or not fell_back(old, now) or core.world.nodes_at_s < core.world.jobs_at_s:
                continue
            del self._ran[job_id]
            gone = sorted(n for n in old.nodes if n in nodes and nodes[n].state == "DOWN")
            if gone and self.recoveries.of_job(job_id) is None:
                await self._lost(old, gone)

    def _tell_of_lost_gres(self) -> None:
        lost = lost_gres(self.core.world.nodes.values())
        if lost and lost != self._lost_gres:
            self.core.alert("nodes.lost_gres", f"{fold(lost)}: {LOST_GRES}", key="lost_gres")
        self._lost_gres = lost

    async def _lost(self, job: Job, gone: list[str]) -> None:
        core = self.core
        name = name_of(gone)
        key = incident_key(job, name)
        if core.journal.incident(key) is not None:
            return
        now_job = await core.call(core.client.job, job.ref)
        if now_job is not None and fell_back(job, now_job):
            await core.read_jobs()
            taken = newcomers(core.world.jobs.values(), job)
            nodes = tuple(n for n in job.nodes if n not in taken)
            now_job = replace(job, nodes=nodes, exclude=now_job.exclude, reservation=now_job.reservation)
        elif now_job is None or not self.protected(now_job) or now_job.restart_count != job.restart_count:
            return
        await core.read_reservations()
        words = f"{', '.join(gone)} stopped responding under job {job.ref.address}"
        usage = usage_of(core.journal, self.recoveries, now_job, core.now_s())
        decision = check_caps(usage, core.config) or plan(
            NODE_LOST,
            now_job,
            gone,
            words,
            cluster=core.world.cluster(),
            config=core.config,
            now_s=core.now_s(),
            room="",
            earlier=core.journal.evicted(job.ref.job_id, job.user),
        )
        core.alert(SignalKind.NODE_NOT_RESPONDING.value, words, key=key)
        row = self._row(now_job, gone, words, decision)
        if isinstance(decision, Refusal) or not core.acting:
            core.journal.add_incident(row)
            outcome = "refused" if isinstance(decision, Refusal) else "observed"
            core.journal.update_incident(
                key, state=CLOSED, outcome=outcome, reason=decision.reason, closed_at_s=core.now_s(), seat=0
            )
            core.info(f"plan.{outcome}", f"{key}: {decision.reason}")
            return
        if (other := self.recoveries.of_job(job.ref.job_id)) is not None:
            self.recoveries.supersede(other.row.key, f"more nodes are lost ({name})")
        self.recoveries.start(row)

    def _row(self, job: Job, gone: list[str], words: str, decision: Recovery | Refusal) -> IncidentRow:
        core = self.core
        claim = self.intake.supervised.get(job.ref.job_id)
        recovery = decision if isinstance(decision, Recovery) else None
        return IncidentRow(
            key=incident_key(job, name_of(gone)),
            id=name_of(gone),
            job_id=job.ref.job_id,
            job=job.ref.address,
            user=job.user,
            cluster=core.cluster_name,
            restart=job.restart_count,
            start_at_s=job.start_at_s,
            kind=NODE_LOST,
            mode=core.mode.value,
            opened_at_s=core.now_s(),
            lineage=claim.lineage if claim else "",
            verdict={"conclusion": "culprit", "confidence": 1.0, "why": words, "suspects": gone},
            recovery=recovery,
            times={"fault": core.now_s(), "accepted": core.now_s()},
            seat=recovery is not None,
        )
