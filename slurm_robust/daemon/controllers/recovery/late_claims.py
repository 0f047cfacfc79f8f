"""Reads the claims that were not answered in time: the daemon was away, or its state folder was full.

A job whose claim is not answered requeues itself plainly, without its suspects. Its Comment keeps the claim while it
waits, and its next attempt repeats it (`Claim.asked`). Each such claim is weighed by the rules for a claim in time: the
suspects are quarantined and checked, and a job that still waits gets a seat. Only the incidents of the journal and the
answers in Slurm are remembered, so a new daemon reads the claims that an earlier daemon has not read.
"""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace

from slurm_robust.core.model import Action, ActionKind
from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.recovery.claim_intake import MARK, ClaimIntake
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.rate_limit import RateLimit
from slurm_robust.daemon.store.attempt_ledger import AttemptLedger
from slurm_robust.daemon.store.journal import RUNNING, IncidentRow
from slurm_robust.marks import claim as protocol
from slurm_robust.marks.claim import Claim, ClaimError
from slurm_robust.policy.cluster.leaf_faults import unmarked
from slurm_robust.policy.cluster.node_states import candidates
from slurm_robust.policy.cluster.recovery_plan import CLAIM, NODE_FAULT, NODE_LOST, Recovery, Refusal, plan, plan_late
from slurm_robust.policy.cluster.recovery_step import ENDED
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmError, SlurmUnavailableError
from slurm_robust.slurm.values import expand

AROUND_S = 5
"""The accounting is asked for the runs within so many seconds of the job's requeue."""
ACCOUNTING_S = 20.0
LOOKS_OF_JOB, LOOKS_OF_USER = 5, 60
"""The most late claims weighed within an hour: each costs calls to Slurm, and a user can write another one at once."""


def late_claim(job: Job) -> Claim | None:
    """Return the claim of an earlier attempt in a job's Comment, as that attempt wrote it; None if there is none."""
    try:
        claim = protocol.parse(job.comment)
    except ClaimError:
        return None  # the intake has logged it
    if claim is None or not claim.incident:
        return None
    restart = claim.restart if claim.state == protocol.STATE_WANTS_REQUEUE else claim.asked
    ended = job.state in ENDED and restart == job.restart_count
    claim = replace(claim, restart=restart, why=unmarked(claim.why))
    return claim if 0 <= restart < job.restart_count or ended else None


def _brings_back(row: IncidentRow, claim: Claim) -> bool:
    """Return whether the daemon itself has brought the job back from the loss or fault that the claim is about."""
    done = row.kind in (NODE_LOST, NODE_FAULT) and row.outcome in ("", "running", "resumed")
    return done and row.recovery is not None and set(claim.evict) <= set(row.recovery.bad)


class LateClaims:
    """Looks through all jobs that wait, run again, or have just ended."""

    def __init__(
        self, context: DaemonContext, intake: ClaimIntake, recoveries: Recoveries, ledger: AttemptLedger
    ) -> None:
        self.context, self.intake, self.recoveries, self.ledger = context, intake, recoveries, ledger
        self._read: dict[int, tuple[str, int, str]] = {}
        self._of_job, self._of_user = RateLimit(LOOKS_OF_JOB, 3600.0), RateLimit(LOOKS_OF_USER, 3600.0)

    async def tick(self) -> None:
        """Weigh late claims, after each reading of the jobs, and after the claims of running jobs."""
        jobs = self.context.readings.jobs
        self._read = {i: text for i, text in self._read.items() if i in jobs}
        for job in jobs.values():
            text = (job.comment, job.restart_count, job.state)
            if MARK not in job.comment or job.completing or self._read.get(job.ref.job_id) == text:
                continue
            with self.context.guarded("claim.waits", f"job {job.ref.address}", key=job.ref.address):
                try:
                    await self._look(job)
                except sqlite3.OperationalError:
                    raise  # a full disk: the claim is read again
                except SlurmError:
                    raise
                except Exception as error:  # noqa: BLE001 (an error with one user's claim must not delay the others)
                    self.context.own_error(error, f"job {job.ref.address} of {job.user}: its late claim is ignored")
                self._read[job.ref.job_id] = text

    async def _look(self, job: Job) -> None:
        claim = late_claim(job)
        if claim is None or self.recoveries.of_job(job.ref.job_id) is not None or self._weighed(job, claim):
            return
        context, now_s = self.context, self.context.now_s()
        if not (self._of_job.take(job.ref.address, now_s) and self._of_user.take(job.user, now_s)):
            context.alert("claim.late", f"job {job.ref.address}: too many late claims: ignored", user=job.user)
            return
        try:
            now_job = await context.call(context.client.job, job.ref)
            if now_job is None or (now_job.comment, now_job.state) != (job.comment, job.state):
                raise SlurmError("read its claim", "the job has just changed")
            if not protocol.answer_to(now_job.admin_comment, claim.incident):
                await self._weigh(now_job, claim)
        except (sqlite3.OperationalError, SlurmUnavailableError):
            # A full disk, or Slurm is away: that is not the user's doing, and the claim is read again.
            self._of_job.give_back(job.ref.address)
            self._of_user.give_back(job.user)
            raise

    def _weighed(self, job: Job, claim: Claim) -> bool:
        rows = self.context.journal.incidents(
            "job_id = ? AND user = ? AND restart = ?", (job.ref.job_id, job.user, claim.restart)
        )
        return any(
            _brings_back(row, claim) or (row.kind == CLAIM and row.incident.id == claim.incident) for row in rows
        )

    async def _weigh(self, job: Job, claim: Claim) -> None:
        """Decide as for a claim that comes in time, about the job as it ran when it asked."""
        context, intake = self.context, self.intake
        ran, start_at_s = await self._ran_on(job, claim)
        attempt = replace(job, state="RUNNING", nodes=ran, restart_count=claim.restart, start_at_s=start_at_s)
        context.info("claim.late", f"job {job.ref.address}: the claim of attempt {claim.restart} is read only now")
        if not ran and claim.evict:
            names = ", ".join(claim.evict)
            unknown = f"neither the daemon nor Slurm's accounting knows where attempt {claim.restart} ran"
            refusal: Refusal | None = Refusal(f"{unknown}, so nothing is done about {names}")
        else:
            refusal = intake.refusal(attempt, claim)
        if refusal is not None:
            await intake.refuse(attempt, claim, refusal.reason, ended=job.state in ENDED)
            return
        await context.read_nodes(1.0)
        await context.read_reservations(1.0)
        decision = self._plan(job, attempt, claim)
        if isinstance(decision, Refusal):
            await intake.refuse(attempt, claim, decision.reason, ended=job.state in ENDED)
            return
        row = intake.row(attempt, claim, decision)
        if not context.acting:
            intake.close(row, "observed", f"not acted on: {decision.reason}")
            context.info("plan.observed", f"{row.key}: would have acted: {decision.reason}")
            return
        intake.take_out(row, decision, claim)
        if decision.seat:
            self.recoveries.start(row)
        else:
            self._only_checked(row, job)
        if job.state in ENDED:
            return  # Slurm does not allow a change of it
        answer = {"state": "accepted", "incident": claim.incident, "road": decision.plan.road.value}
        await intake.actor.perform(row.key, Action(ActionKind.ANSWER, job.ref.address, decision.reason, answer))

    def _plan(self, job: Job, attempt: Job, claim: Claim) -> Recovery | Refusal:
        """Plan a seat for a waiting job, for as many nodes as it had; otherwise only the suspects' check."""
        context, now_s = self.context, self.context.now_s()
        why = f"{claim.why or 'the job asked to be requeued'}; nobody answered its claim in time"
        request = self.intake.request(attempt, claim, why)
        # The job's own requeue has excluded its suspects: that was no choice of the user's.
        request = replace(request, earlier=request.earlier | frozenset(claim.evict))
        cluster = self.recoveries.cluster_for(job)
        # Its user can make a waiting job larger, which must not give it nodes before all who wait for them.
        if job.state != "PENDING" or job.num_nodes > len(attempt.nodes):
            return plan_late(replace(request, suspects_to=request.suspects_to and "quarantine"), cluster)
        # Other jobs may have taken its nodes since, or somebody has reserved them.
        waits = replace(attempt, nodes=(), start_at_s=int(now_s))
        until_s = math.inf if job.time_limit_s is None else now_s + job.time_limit_s
        free = candidates(waits, attempt.nodes, cluster, context.config, until_s)
        again = tuple(n for n in attempt.nodes if n in claim.evict or n in free)
        return plan(replace(request, job=replace(waits, nodes=again), requeued=True), cluster, context.config, now_s)

    def _only_checked(self, row: IncidentRow, job: Job) -> None:
        journal, now_s = self.context.journal, self.context.now_s()
        times = {name: at_s for name, at_s in row.incident.times.items() if name != "accepted"}  # it was back before
        journal.add_incident(replace(row, incident=replace(row.incident, times=times)))
        if job.state in ENDED:
            journal.close_incident(row.key, "ended", f"the job ended ({job.state}) before its claim was read", now_s)
            return
        reason = "it requeued itself, since nobody answered; a new step of the training is awaited"
        journal.update_incident(row.key, state=RUNNING, outcome="running", reason=reason)
        if (claim := protocol.parse(job.comment)) is not None:
            self.intake.merge_times(job, claim)

    async def _ran_on(self, job: Job, claim: Claim) -> tuple[tuple[str, ...], int]:
        """Return where and since when the attempt ran, as the daemon saw or Slurm remembers; empty if neither knows.

        A claim may only name its job's own nodes, and Slurm does not show the nodes of a waiting job.
        """
        if job.state in ENDED and claim.restart == job.restart_count:
            return job.nodes, job.start_at_s
        if seen := self.ledger.run(job.ref.job_id, job.user, claim.restart):
            return seen.nodes, seen.run_at_s
        context, requeued_at_s = self.context, job.submit_at_s  # a requeue rewrites it
        if claim.restart != job.restart_count - 1 or context.now_s() - requeued_at_s > DAY_S:
            return (), 0
        window = (requeued_at_s - AROUND_S, requeued_at_s + AROUND_S)
        try:
            runs = await context.call(context.client.past_runs, *window, timeout_s=ACCOUNTING_S)
        except SlurmError:
            return (), 0  # a site without accounting
        own = [r for r in runs if (r.job_id, r.user) == (job.ref.job_id, job.user) and r.nodes and r.ended_at_s]
        last = max(own, key=lambda r: r.started_at_s or 0, default=None)
        return (expand(last.nodes), last.started_at_s or 0) if last is not None else ((), 0)
