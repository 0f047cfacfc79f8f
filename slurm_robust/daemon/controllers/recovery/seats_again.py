"""Gives a waiting job a seat again, once enough nodes are free that its first seat lacked.

A seat that lacks nodes is held for `seat.start_timeout_s` only, so that other jobs do not wait for its nodes. But Slurm
alone never gives the job a standby node: the job would wait for ever.
"""

from __future__ import annotations

import math
from dataclasses import replace

from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.store.journal import CLOSED, OPEN, IncidentRow
from slurm_robust.policy.cluster.node_states import candidates, class_of
from slurm_robust.policy.cluster.recovery_plan import Recovery, RecoveryRequest, Refusal, plan
from slurm_robust.policy.cluster.recovery_view import missing
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.values import expand

EVERY_S = 5.0
"""Waiting jobs are compared with the free nodes so often."""
AGAIN_S = 600.0
"""A job gets a seat again at most so often, and within a day of its incident."""


class SeatsAgain:
    """Level-triggered, after each reading of the nodes; a job with an open recovery is left to that."""

    def __init__(self, context: DaemonContext, recoveries: Recoveries) -> None:
        self.context, self.recoveries = context, recoveries
        self._looked_at_s = 0.0
        self._seated: dict[int, float] = {}
        """By job: when the job last got a seat again."""
        self.lacked: frozenset[str] = frozenset()
        """Nodes that jobs could use which wait after a requeue for want of nodes: no standby pool takes them."""

    def restart_timers(self) -> None:
        """Look at once, since the clock was set back."""
        self._looked_at_s = 0.0
        self._seated.clear()

    async def tick(self) -> None:
        """Look through the jobs that wait after a requeue."""
        context, now_s = self.context, self.context.now_s()
        if not context.acting or now_s < self._looked_at_s + EVERY_S:
            return
        self._looked_at_s = now_s
        jobs = context.readings.jobs
        self._seated = {i: at_s for i, at_s in self._seated.items() if i in jobs}
        waiting = [j for j in jobs.values() if j.state == "PENDING" and j.restart_count and not j.completing]
        waiting = [j for j in waiting if j.priority]
        found = [(job, self._last(job)) for job in waiting]
        known = [(job, *last) for job, last in found if last is not None]
        self.lacked = frozenset[str]().union(*(self._lacked(*one) for one in known))
        for job, row, last in known:
            job_id = job.ref.job_id
            rests = now_s < self._seated.get(job_id, 0.0) + AGAIN_S
            if not rests and self.recoveries.of_job(job_id) is None:
                with context.guarded("recovery.waits", f"job {job.ref.address}", key=job.ref.address):
                    await self._look(job, row, last)

    def _last(self, job: Job) -> tuple[IncidentRow, Recovery] | None:
        """Return the job's last recovery, if its incident is not older than a day."""
        last = next(iter(self.context.journal.recoveries(job.ref.job_id, job.user)), None)
        return last if last is not None and self.context.now_s() <= last[0].incident.opened_at_s + DAY_S else None

    def _lacked(self, job: Job, row: IncidentRow, last: Recovery) -> frozenset[str]:
        """Return the nodes of the kind that the job ran on, if it has waited for nodes since its last recovery."""
        nodes, named = self.context.readings.nodes, job.partition.split(",")
        short = missing(last, job, nodes) > 0 if row.state == OPEN else _for_nodes(job)
        if not short or "maintenance" in job.reason.lower() or job.restart_count <= last.restart:
            return frozenset()
        its = [(nodes[n], p) for n in (*last.seat_nodes, *last.bad) if n in nodes for p in named]
        kinds = {class_of(node, p) for node, p in its if p in node.partitions}
        like = {n.name for n in nodes.values() for p in named if p in n.partitions and class_of(n, p) in kinds}
        return frozenset(like - {*expand(last.own_exclude)})

    async def _look(self, job: Job, row: IncidentRow, last: Recovery) -> None:
        context, now_s = self.context, self.context.now_s()
        if not _short(row, last) or not self._free(last, job):
            return
        now_job = await context.call(context.client.job, job.ref)  # with its exclusions
        if now_job is None or not _waits(now_job, last):
            return
        await context.read_nodes()
        await context.read_reservations()
        nodes = self._free(last, now_job)
        if not nodes or not self.recoveries.seats_left:
            return
        self._seated[job.ref.job_id] = now_s
        decision = self._planned(row, last, now_job, nodes)
        if isinstance(decision, Refusal):
            context.info("recovery.again", f"{row.key}: enough nodes are free, and yet no seat: {decision.reason}")
            return
        context.info("recovery.again", f"{row.key}: {len(nodes)} nodes are free for the job now: a seat again")
        self.recoveries.reopen(row, decision)

    def _planned(self, row: IncidentRow, last: Recovery, job: Job, nodes: tuple[str, ...]) -> Recovery | Refusal:
        """Plan the recovery anew, as if the job had just run on these nodes: coming reservations bound its time."""
        context, now_s = self.context, self.context.now_s()
        ran = replace(job, nodes=nodes, restart_count=last.restart, start_at_s=int(now_s))
        left_out = tuple(n for n in last.bad if n not in nodes)
        earlier = context.journal.evicted(job.ref.job_id, job.user)
        incident = row.incident
        verdict = incident.verdict
        why = verdict.reason if verdict is not None else last.reason
        asked = RecoveryRequest(last.kind, ran, left_out, why, "", incident.id, earlier=earlier, requeued=True)
        decision = plan(asked, self.recoveries.cluster_for(job), context.config, now_s)
        if isinstance(decision, Refusal):
            return decision
        own = {name for name in nodes if name in last.kept}
        return replace(decision, kept=tuple(sorted(own)), standby=tuple(sorted({*nodes} - own)))

    def _free(self, last: Recovery, job: Job) -> tuple[str, ...]:
        """Return as many free nodes as the job needs, its former nodes first; empty if there are too few."""
        until_s = math.inf if job.time_limit_s is None else self.context.now_s() + job.time_limit_s
        need = min(job.num_nodes, last.size)
        cluster = self.recoveries.cluster_for(job)
        job = replace(job, nodes=())  # Slurm still shows the old nodes of a waiting job
        free = candidates(job, [*last.seat_nodes, *last.bad], cluster, self.context.config, until_s)
        free.sort(key=lambda name: name not in last.kept)
        return tuple(free[:need]) if len(free) >= need > 0 else ()


def _short(row: IncidentRow, last: Recovery) -> bool:
    """Return whether the job's last recovery came to nothing, and its seat had fewer nodes than the job."""
    gave_up = row.state == CLOSED and row.outcome == "not_started"
    return gave_up and bool(last.seat) and len(last.seat_nodes) < last.size


def _waits(job: Job, last: Recovery) -> bool:
    """Return whether the job still waits for the nodes that it had, and for nothing else."""
    same = job.restart_count == last.restart + 1 and job.num_nodes <= last.size
    for_nodes = _for_nodes(job) or job.reason.lower() in ("priority", "none", "")
    return job.state == "PENDING" and same and for_nodes and bool(job.priority)


def _for_nodes(job: Job) -> bool:
    """Return whether Slurm says that the job waits for nodes."""
    # As `ReqNodeNotAvail`, or `Nodes required for job are DOWN, …`; but not `QOSMaxNodePerUserLimit`.
    word = job.reason.lower()
    return word == "resources" or ("node" in word and "limit" not in word)
