"""Reads the claims that jobs write into their Comment, as untrusted text, and turns an accepted one into a plan.

The way of a claim between Comment and requeue, in this order:

1. `tick` finds a Comment with a claim that it has not read yet; `claim.parse` checks every field of it.
2. `_weigh` drops a claim of an earlier attempt, or one that was weighed before: each incident is weighed once.
3. `_refusal` applies the rules of `policy.cluster.recovery_plan.check_claim` (the job's own nodes only, caps on seats).
4. `_decide` reads Slurm again and calls `recovery_plan.plan`, which writes down every action of the recovery. If the
   breaker is open, a bound on claims is reached, or the evidence is weak, no action takes a suspect out of service: the
   job only gets a seat without the suspect.
5. A refusal is closed in the journal, and answered in `AdminComment`. In observe mode the plan is only written down.
6. `Recoveries.start` writes the plan to the journal. From then on `recoveries` takes the steps that
   `policy.cluster.recovery_step.next_step` names: quarantine, seat, answer, requeue, and later steps.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from slurm_robust.core.model import TIME_KEYS, Action, ActionKind, Mode
from slurm_robust.core.text import shortened
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.recovery.incident_rows import incident_key, new_row, reached, report_folder
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.jobs_together import JobsTogether
from slurm_robust.daemon.rate_limit import RateLimit
from slurm_robust.daemon.store.journal import RUNNING, IncidentRow
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.marks import claim as protocol
from slurm_robust.marks import drain_permit
from slurm_robust.marks.claim import Claim, ClaimError
from slurm_robust.policy.cluster.breaker import ClaimedSuspects, kept_in_service
from slurm_robust.policy.cluster.leaf_faults import unmarked
from slurm_robust.policy.cluster.recovery_plan import (
    CLAIM,
    NODE_FAULT,
    NODE_LOST,
    OWNER,
    Recovery,
    RecoveryRequest,
    Refusal,
    check_claim,
    plan,
    plan_owner,
)
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import fold

MARK = "[[srobust:"
YIELD_S = 6.0
"""The time that a user's own daemon waits for the answer of the site's daemon, if that daemon is alive."""
AGAIN_S = 1.0
"""Claims that come together are decided on one reading; one that is older is made again."""
EXPECT_S = 60.0
"""The time for which one job's claim makes the daemon read the jobs more often."""


@dataclass(frozen=True)
class ReadClaim:
    """The claim that was last read from a job, so that the same text is weighed once.

    Attributes:
        at_s: When it was read.
        plan_at_s: When the plan in it was first read; 0 if it has none.
    """

    comment: str
    restart: int
    claim: Claim | None
    at_s: float = 0.0
    plan_at_s: float = 0.0

    @property
    def plan(self) -> tuple[str, str] | None:
        """The incident, and the plan for it, which needs nothing from the daemon."""
        return (self.claim.incident, self.claim.road) if self.claim is not None and self.claim.road else None


class ClaimIntake:
    """Reads the claims of all jobs, or of one user's own."""

    def __init__(
        self,
        context: DaemonContext,
        actor: Actor,
        recoveries: Recoveries,
        breaker: Breaker,
        ledger: NodeLedger,
        *,
        as_user: bool = False,
    ) -> None:
        self.context, self.actor, self.recoveries = context, actor, recoveries
        self.breaker, self.ledger = breaker, ledger
        self.as_user = as_user
        self._yielding: dict[str, float] = {}
        self._together = JobsTogether(context, AGAIN_S)
        self._read: dict[int, ReadClaim] = {}
        self._answers = RateLimit(5, 3600.0)
        self._looked_again_at_s = 0.0

    @property
    def supervised(self) -> dict[int, Claim]:
        """Running jobs with a valid claim, by raw id; a job that says it is done is not supervised any more."""
        return {job_id: claim for job_id, claim in self.claims.items() if claim.state != protocol.STATE_DONE}

    @property
    def claims(self) -> dict[int, Claim]:
        """Running jobs with a valid claim, by raw id."""
        return {i: r.claim for i, r in self._read.items() if r.claim is not None}

    def stays(self, job_id: int, since_s: float) -> bool:
        """Return whether this job's supervisor only observes, or has told a plan of its own since then."""
        read = self._read.get(job_id)
        if read is None or job_id not in self.supervised or read.claim is None:
            return False
        return read.claim.mode == Mode.OBSERVE.value or (read.plan is not None and read.plan_at_s >= since_s)

    @property
    def expecting(self) -> bool:
        """True while a job whose recovery is not under way suspects a fault, or asked for a requeue: it soon claims."""
        since_s, recovered = self.context.now_s() - EXPECT_S, {f.row.job_id for f in self.recoveries.open.values()}
        return any(
            r.claim.state == protocol.STATE_WANTS_REQUEUE or r.claim.suspected_at_s > 0
            for i, r in self._read.items()
            if r.claim is not None and r.claim.restart == r.restart and r.at_s > since_s and i not in recovered
        )

    async def tick(self) -> None:
        """Weigh the claims that are new since the last reading of the jobs."""
        jobs = self.context.readings.jobs
        # Bounded by the jobs that run now.
        self._read = {i: r for i, r in self._read.items() if i in jobs and jobs[i].state == "RUNNING"}
        new = [job for job in jobs.values() if self._is_new(job)]
        await self._together.read([job.ref for job in new if f'"{protocol.STATE_WANTS_REQUEUE}"' in job.comment])
        for job in new:
            try:
                await self._read_claim(job)
            except SlurmError as error:  # noqa: PERF203 (one claim must not delay the others)
                # Not remembered: it is weighed again at the next poll.
                self.context.alert("claim.waits", f"job {job.ref.address}: {error}", key=job.ref.address, user=job.user)
            except sqlite3.OperationalError:
                raise  # a full disk: no claim can be weighed
            except Exception as error:  # noqa: BLE001 (an error with one user's claim must not delay the others)
                self.context.own_error(error, f"job {job.ref.address} of {job.user}: its claim is ignored")
                self._remember(job, None)

    def _is_new(self, job: Job) -> bool:
        if job.state != "RUNNING" or MARK not in job.comment or (self.as_user and job.user != self.context.account):
            return False
        known = self._read.get(job.ref.job_id)
        return known is None or (known.comment, known.restart) != (job.comment, job.restart_count)

    def _remember(self, job: Job, claim: Claim | None, comment: str | None = None) -> None:
        text, now_s = job.comment if comment is None else comment, self.context.now_s()
        known = self._read.get(job.ref.job_id)
        read = ReadClaim(text, job.restart_count, claim, now_s)
        if read.plan is not None and claim is not None:
            # Of the first claim that this daemon reads, only its owner's clock can tell how old it is.
            same = known is not None and known.plan == read.plan and known.restart == read.restart
            plan_at_s = known.plan_at_s if known and same else now_s if known else min(now_s, claim.at_s or now_s)
            read = replace(read, plan_at_s=plan_at_s)
        self._read[job.ref.job_id] = read

    async def _read_claim(self, job: Job) -> None:
        claim = self._parse(job)
        if claim is not None and claim.state == protocol.STATE_WANTS_REQUEUE:
            if self.as_user and await self._site_first(job, claim):
                return
            await self._weigh(job, claim)
        elif claim is not None:
            self.merge_times(job, claim)
        open_still = self.recoveries.of_job(job.ref.job_id) is not None and claim is not None and claim.incident
        # A claim written while the job's recovery tidies up is read again once that is done.
        self._remember(job, claim, comment="" if open_still else None)

    def _parse(self, job: Job) -> Claim | None:
        try:
            claim = protocol.parse(job.comment)
            return claim and replace(claim, why=unmarked(claim.why))
        except ClaimError as error:
            self._malformed(job, f"malformed claim, nothing done: {error}")
            return None

    def _malformed(self, job: Job, text: str) -> None:
        address = job.ref.address
        self.context.alert("claim.malformed", f"job {address} of {job.user}: {text}", key=address, user=job.user)

    async def _weigh(self, job: Job, claim: Claim) -> None:
        context = self.context
        if not claim.incident:
            self._malformed(job, "a claim without an incident, nothing done")
            return
        key = incident_key(job, claim.incident)
        if claim.restart != job.restart_count or context.journal.incident(key) is not None:
            return
        decision = await self._decide(job, claim)
        if isinstance(decision, Refusal):
            await self.refuse(job, claim, decision.reason)
            return
        row = self.row(job, claim, decision)
        if not context.acting:
            self.close(row, "observed", f"not acted on: {decision.reason}")
            context.info("plan.observed", f"{key}: would have acted: {decision.reason}")
            return
        if (other := self.recoveries.of_job(job.ref.job_id)) is not None:
            self.recoveries.supersede(other.row.key, f"the job itself asked ({claim.incident})")
        self.take_out(row, decision, claim)
        self.recoveries.start(row)

    def take_out(self, row: IncidentRow, decision: Recovery, claim: Claim) -> None:
        """Write down the quarantines that a claim's plan has; the first step of each follows from its row."""
        now_s = self.context.now_s()
        for action in decision.actions:
            if action.kind is ActionKind.QUARANTINE:
                suspect = (action.target, row.key, row.job_id, claim.lineage, decision.reason)
                self.ledger.quarantine(Quarantine(*suspect, now_s, now_s, user=row.user))

    def refusal(self, job: Job, claim: Claim) -> Refusal | None:
        """Return why this claim is refused, as far as that is known without calling Slurm."""
        context = self.context
        if (other := self.recoveries.of_job(job.ref.job_id)) is not None and other.recovery.kind != NODE_LOST:
            return Refusal(f"a recovery of this job is under way already ({other.incident.id})")
        caps = self.recoveries.caps
        return caps.told(job, check_claim(job, claim, caps.usage(job, claim.step), context.config))

    def kept_in_service(self, job: Job, claim: Claim) -> str:
        """Return, and log, why a claim's suspects stay in service; empty if they may be taken out."""
        if not claim.evict:
            return ""
        why = self.breaker.kept_for_claim(ClaimedSuspects(frozenset(claim.evict), job.user, claim.grade))
        if not why:
            return ""
        kept, address = kept_in_service(claim.evict, why), job.ref.address
        self.context.alert("claim.suspect_kept", f"job {address}: {kept}", key=address, user=job.user)
        return kept

    async def _decide(self, job: Job, claim: Claim) -> Recovery | Refusal:
        context = self.context
        if refusal := self.refusal(job, claim):
            return refusal
        # The reading of all jobs is up to seconds old, and has no exclusions: everything is read again.
        now_job = await self._together.job(job.ref)
        if now_job is None or (now_job.restart_count, now_job.comment) != (job.restart_count, job.comment):
            return Refusal("the job has changed since its claim was read")
        why = claim.why or "the job asked to be requeued"
        if self.as_user:
            return plan_owner(now_job, claim.evict, why)
        # Nothing that was read before the claim serves: a reservation may have been made in that second.
        age_s = min(AGAIN_S, context.now_s() - context.readings.jobs_at_s)
        await context.read_nodes(age_s)
        await context.read_reservations(age_s)
        if refusal := self.refusal(now_job, claim):
            return refusal
        request = self.request(now_job, claim, why)
        decision = plan(request, self.recoveries.cluster_for(job), context.config, context.now_s())
        short = isinstance(decision, Recovery) and len(decision.seat_nodes) < len(now_job.nodes)
        if short and not 0 <= context.now_s() - self._looked_again_at_s < AGAIN_S:
            # A standby node may have been at its check when the jobs were read, and be free by now.
            self._looked_again_at_s = context.now_s()
            await context.read_jobs()
            decision = plan(request, self.recoveries.cluster_for(job), context.config, context.now_s())
        return decision

    def request(self, job: Job, claim: Claim, why: str) -> RecoveryRequest:
        """Return the request of a claim, within the bounds on taking nodes out of service by claims."""
        kept = self.kept_in_service(job, claim)
        seen = self.recoveries.of_job(job.ref.job_id)
        lost = seen.recovery.bad if seen is not None and seen.recovery.kind == NODE_LOST else ()
        return RecoveryRequest(
            CLAIM,
            job,
            claim.evict,
            f"{why}; {kept}" if kept else why,
            suspects_to="" if kept else self.context.config.quarantine.claims,
            incident=claim.incident,
            earlier=self.context.journal.evicted(job.ref.job_id, job.user),
            lost=lost,
        )

    def times_of(self, claim: Claim) -> dict[str, float]:
        """Return the claim's times that can be true."""
        return {k: v for k, v in claim.times.items() if k in TIME_KEYS and 0 < v < self.context.now_s() + 60}

    def row(self, job: Job, claim: Claim, decision: Recovery | None) -> IncidentRow:
        """Return a claim as an incident of the journal; its suspects are the nodes that it wants to evict."""
        verdict, times = claim.verdict(claim.evict), self.times_of(claim)
        return replace(
            new_row(self.context, job, claim.incident, verdict=verdict, decision=decision, times=times),
            kind=OWNER if self.as_user else CLAIM,
            lineage=claim.lineage,
            confidence=claim.confidence,
            step=claim.step,
            claimed_at_s=claim.at_s,
            report=report_folder(job),
        )

    async def refuse(self, job: Job, claim: Claim, reason: str, *, ended: bool = False) -> None:
        """Write a refusal down, and answer the job with it; Slurm allows no answer to a job that has `ended`."""
        context, address = self.context, job.ref.address
        context.alert("claim.refused", f"job {address} of {job.user}: {reason}", key=address, user=job.user)
        # A job that floods the daemon gets only a few rows and answers an hour; the rest is not written down.
        if not self._answers.take(address, context.now_s()):
            return
        row = self.row(job, claim, None)
        try:
            self.close(row, "refused", reason)
        except sqlite3.OperationalError:
            self._answers.give_back(address)  # a full disk: it is weighed again
            raise
        if context.acting and not self.as_user and not ended:
            answer = {"state": "refused", "incident": claim.incident}
            await self.actor.perform(row.key, Action(ActionKind.ANSWER, address, reason, answer))

    def close(self, row: IncidentRow, outcome: str, reason: str) -> None:
        """Write a claim down of which nothing follows."""
        self.context.journal.add_incident(row)
        self.context.journal.close_incident(row.key, outcome, reason, self.context.now_s(), seat=0)

    async def _site_first(self, job: Job, claim: Claim) -> bool:
        """Return whether a user's own daemon leaves the claim to the site's, which is alive if it has drain permits."""
        context, now_s = self.context, self.context.now_s()
        if protocol.answer_to(job.admin_comment, claim.incident):
            return True
        key = incident_key(job, claim.incident)
        if key not in self._yielding:
            await context.read_nodes()
            site = any(
                drain_permit.parse(n.comment, now_s) for n in context.readings.nodes.values() if n.name in job.nodes
            )
            self._yielding = {key: now_s + (YIELD_S if site else 0.0), **dict(list(self._yielding.items())[:255])}
        return now_s < self._yielding[key]

    def merge_times(self, job: Job, claim: Claim) -> None:
        """Merge the times of a later attempt's start; its first new step closes the incident."""
        context = self.context
        if claim.restart != job.restart_count or not (claim.times or claim.progress.get("new")):
            return
        # Nobody claimed the loss or the fault of a node: the next attempt's times are its times, too.
        where = "job_id = ? AND state = ? AND (id = ? OR (kind IN (?, ?) AND restart = ?))"
        values = (job.ref.job_id, RUNNING, claim.incident, NODE_LOST, NODE_FAULT, job.restart_count - 1)
        rows = context.journal.incidents(where, values, 1)
        if not rows or rows[0].attempt.restart_count >= job.restart_count:
            return
        row, incident = rows[0], rows[0].incident
        # The daemon's own `stopped` and `running` are kept.
        kept = {"stopped", "running"} & set(incident.times)
        # Where the supervisor knows of no incident, it tells of its new step with its progress alone.
        new = {"first_new_step": claim.progress.get("new", 0.0)} if row.kind in (NODE_LOST, NODE_FAULT) else {}
        times = self.times_of(replace(claim, times={**new, **claim.times})).items()
        fresh = {k: v for k, v in times if v > incident.opened_at_s - DAY_S and k not in kept}
        context.journal.update_incident(row.key, times=fresh)
        if "first_new_step" in fresh:
            reason = f"{reached(claim)}, on {shortened(fold(job.nodes), 200)}"
            context.journal.close_incident(row.key, "resumed", reason, context.now_s())
            context.info("incident.closed", f"{row.key}: {reason}")
