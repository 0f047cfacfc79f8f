"""Gives waiting jobs back the nodes that a recovery excluded, once these are fit and out of quarantine.

It also knows which waiting jobs leave nodes out: nothing else shows why such a job waits beside an idle node.
"""

from __future__ import annotations

from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.store.journal import IncidentRow
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.marks import blind_marker
from slurm_robust.marks import claim as protocol
from slurm_robust.marks.claim import ClaimError
from slurm_robust.policy.cluster.node_states import idle
from slurm_robust.policy.cluster.recovery_plan import Recovery
from slurm_robust.policy.cluster.recovery_step import lift
from slurm_robust.policy.cluster.recovery_view import fit_again
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.values import expand

AGAIN_S = 60.0
"""The time after which the same nodes are given back again if needed: slurmctld may have forgotten the change."""
CHANGED_S = 20.0
"""A waiting job is read again for status at most so often: its user can change its claim at each look."""

Recovered = list[tuple[IncidentRow, Recovery]]
"""A job's recoveries, as `Journal.recoveries` gives them."""


class Exclusions:
    """Level-triggered, after each reading of the nodes; a job with an open recovery is left to that."""

    def __init__(self, context: DaemonContext, actor: Actor, recoveries: Recoveries, ledger: NodeLedger) -> None:
        self.context, self.actor, self.recoveries, self.ledger = context, actor, recoveries, ledger
        self._given_back: dict[int, tuple[frozenset[str], float]] = {}
        """By job: the nodes that were given back, and when."""
        self._asked: dict[int, tuple[frozenset[str], float]] = {}
        """By job: the nodes that recoveries and its own claim left out when Slurm was last asked, and when that was."""
        self.left_out: dict[int, tuple[str, ...]] = {}
        """By waiting job: the nodes that Slurm keeps it from, because a recovery or its own claim excluded them."""

    def restart_timers(self) -> None:
        """Begin anew with every job, since the clock was set back."""
        self._given_back.clear()
        self._asked.clear()

    def shown(self, job: Job) -> dict[str, str]:
        """Return why this waiting job leaves nodes out, by node; empty if it does not leave nodes out."""
        nodes, held = self.context.readings.nodes, {q.node for q in self.ledger.quarantines()}
        return {n: "in quarantine" if n in held else _why_not(nodes.get(n)) for n in self._left_out_now(job)}

    def _left_out_now(self, job: Job) -> tuple[str, ...]:
        under_way = self.recoveries.of_job(job.ref.job_id)
        if under_way is None:
            return self.left_out.get(job.ref.job_id, ())
        seen = under_way.job
        out = under_way.recovery.bad if seen is None else expand(seen.exclude or "")  # it may have been given back
        return tuple(n for n in under_way.recovery.bad if n in out)

    async def tick(self) -> None:
        """Otherwise a job could wait for ever after its recovery was given up, or after a later requeue."""
        waiting = {
            i: j
            for i, j in self.context.readings.jobs.items()
            if j.state == "PENDING" and j.restart_count and not j.completing and self.recoveries.of_job(i) is None
        }
        self._given_back = {i: seen for i, seen in self._given_back.items() if i in waiting}
        self._asked = {i: asked for i, asked in self._asked.items() if i in waiting}
        self.left_out = {i: names for i, names in self.left_out.items() if i in waiting}
        for job in waiting.values():
            with self.context.guarded("exclusion.waits", f"job {job.ref.address}", key=job.ref.address):
                done = self.context.journal.recoveries(job.ref.job_id, job.user)
                if self.context.acting:
                    await self._give_back(job, done)
                await self._note_left_out(job, done)

    async def _note_left_out(self, job: Job, done: Recovered) -> None:
        job_id, now_s = job.ref.job_id, self.context.now_s()
        try:
            claim = protocol.parse(job.comment)
        except ClaimError:
            claim = None
        wanted = frozenset(claim.evict if claim is not None and not claim.road else ())
        wanted |= {n for _, r in done for n in r.bad}
        before, at_s = self._asked.get(job_id, (frozenset[str](), 0.0))
        if not wanted or now_s < at_s + (AGAIN_S if wanted == before else CHANGED_S):
            return
        now_job = await self.context.call(self.context.client.job, job.ref)
        self.left_out[job_id] = tuple(sorted(wanted.intersection(expand((now_job and now_job.exclude) or ""))))
        self._asked[job_id] = (wanted, now_s)

    async def _give_back(self, job: Job, done: Recovered) -> None:
        context, now_s = self.context, self.context.now_s()
        if not done or job.restart_count <= done[0][1].restart:
            return
        row, last = done[0]
        bad = {n for _, r in done for n in r.bad} - {*expand(last.own_exclude)}
        fit = fit_again(bad, context.readings.nodes, frozenset(q.node for q in self.ledger.quarantines()))
        seen, at_s = self._given_back.get(job.ref.job_id, (frozenset[str](), 0.0))
        if not fit or (fit <= seen and now_s < at_s + AGAIN_S):
            return
        now_job = await context.call(context.client.job, job.ref)
        if now_job is None or now_job.state != "PENDING" or now_job.completing:
            return
        if back := fit & {*expand(now_job.exclude or "")}:
            action = lift(job.ref.address, back, now_job)
            await self.actor.perform(row.key, action)
            now_job = await context.call(context.client.job, job.ref)
            self._asked.pop(job.ref.job_id, None)
            if now_job is None or not back & {*expand(now_job.exclude or "")}:
                context.journal.note_result(row.key, action, context.now_s())
        self._given_back[job.ref.job_id] = (fit, now_s)


def _why_not(node: Node | None) -> str:
    """Return why a left out node is of no use to its job now; `fit` if only the exclusion keeps the job from it."""
    if node is None or not node.usable:
        return "out of service"
    if blind_marker.marked(node.extra, blind_marker.FULL):
        return "its disk is full"
    return "fit" if idle(node) else "in use"
