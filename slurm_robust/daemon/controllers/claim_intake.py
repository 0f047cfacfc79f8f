"""Reads what jobs say of themselves in their Comment, as untrusted text, and turns an accepted claim into a plan."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import PurePosixPath

from slurm_robust import claim as protocol
from slurm_robust.claim import Claim, ClaimError
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.recoveries import Recoveries
from slurm_robust.daemon.core import Core, Ration, printable
from slurm_robust.daemon.store.journal import CLOSED, RUNNING, IncidentRow, Journal
from slurm_robust.daemon.store.node_ledger import Ledger, Quarantine
from slurm_robust.drain_permit import parse as parse_permit
from slurm_robust.model import TIME_KEYS, Action, ActionKind
from slurm_robust.policy.cluster.recovery_plan import (
    CLAIM,
    NODE_LOST,
    OWNER,
    Recovery,
    Refusal,
    Usage,
    check_claim,
    plan,
    plan_owner,
)
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmError

DAY_S = 86400.0
MARK = "[[srobust:"
YIELD_S = 6.0
"""How long a user's own daemon waits for the answer of a site's daemon that is alive."""
EXPECT_S = 60.0
"""How long the jobs are read more often for one job's sake, from its last word."""


@dataclass(frozen=True)
class Heard:
    """What a job said last, so that the same words are weighed once."""

    comment: str
    restart: int
    claim: Claim | None
    at_s: float = 0.0


def incident_key(job: Job, incident: str) -> str:
    """Unique name of an incident: the attempt's own, since incident names are chosen by the job."""
    return f"{job.ref.job_id}.r{job.restart_count}.{job.start_at_s}.{incident}"


def usage_of(journal: Journal, recoveries: Recoveries, job: Job, now_s: float, step: int = -1) -> Usage:
    """Seats given so far, for the caps; `step` is the highest that the job says it has reached."""
    since_s = now_s - DAY_S
    return Usage(
        active=sum(1 for f in recoveries.open.values() if f.recovery.seat),
        user_day=journal.seats_since(since_s, user=job.user),
        job_day=journal.seats_since(since_s, job_id=job.ref.job_id),
        job_fruitless=journal.fruitless_seats(since_s, job.ref.job_id, step),
    )


def report_folder(job: Job) -> str:
    """Where the wrapper puts its report: beside the job's output file. A job's own words, to be shown only."""
    parent = PurePosixPath(job.std_out).parent if job.std_out.startswith("/") else PurePosixPath(job.work_dir or "/")
    return printable(str(parent / f"slurm-robust-{job.ref.job_id}"))


class Intake:
    """Listens to all jobs, or to one user's own."""

    def __init__(
        self,
        core: Core,
        actor: Actor,
        recoveries: Recoveries,
        breaker: Breaker,
        ledger: Ledger,
        *,
        as_user: bool = False,
    ) -> None:
        self.core, self.actor, self.recoveries, self.breaker, self.ledger = core, actor, recoveries, breaker, ledger
        self.as_user = as_user
        self._yielding: dict[str, float] = {}
        self._heard: dict[int, Heard] = {}
        self._answers = Ration(5, 3600.0)

    @property
    def supervised(self) -> dict[int, Claim]:
        """Running jobs with a valid claim, by raw id; one that says it is done wants nothing any more."""
        done = protocol.STATE_DONE
        return {job_id: h.claim for job_id, h in self._heard.items() if h.claim is not None and h.claim.state != done}

    @property
    def expecting(self) -> bool:
        """True while a job suspects something, or has asked: its next word is on its way, and will be waiting."""
        since_s = self.core.now_s() - EXPECT_S
        return any(
            h.claim.state == protocol.STATE_WANTS_REQUEUE or h.claim.suspected_at_s > 0
            for h in self._heard.values()
            if h.claim is not None and h.claim.restart == h.restart and h.at_s > since_s
        )

    async def tick(self) -> None:
        """Weigh what is new since the last look at the jobs."""
        jobs = self.core.world.jobs
        # What is remembered is bounded by the jobs that run now.
        self._heard = {i: h for i, h in self._heard.items() if i in jobs and jobs[i].state == "RUNNING"}
        for job in jobs.values():
            if job.state != "RUNNING" or MARK not in job.comment or (self.as_user and job.user != self.core.account):
                continue
            heard = self._heard.get(job.ref.job_id)
            if heard and (heard.comment, heard.restart) == (job.comment, job.restart_count):
                continue
            try:
                await self._hear(job)
            except SlurmError as error:
                # Not remembered as heard: weighed again at the next look.
                self.core.alert("claim.waits", f"job {job.ref.address}: {error}", key=job.ref.address)
            except sqlite3.OperationalError:
                raise  # a full disk: nobody's claim can be weighed
            except Exception as error:  # noqa: BLE001 (one user's words must not keep the others unheard)
                self.core.broken(error, f"job {job.ref.address} of {job.user}: its claim is passed over")
                self._heard[job.ref.job_id] = Heard(job.comment, job.restart_count, None, self.core.now_s())

    async def _hear(self, job: Job) -> None:
        claim = self._parse(job)
        if claim is not None and claim.state == protocol.STATE_WANTS_REQUEUE:
            if self.as_user and await self._site_first(job, claim):
                return
            await self._weigh(job, claim)
        elif claim is not None:
            self.merge_times(job, claim)
        under_way = self.recoveries.of_job(job.ref.job_id) is not None and claim is not None and claim.incident
        # Said while its recovery is still tidying up: read again once that is done.
        comment = "" if under_way else job.comment
        self._heard[job.ref.job_id] = Heard(comment, job.restart_count, claim, self.core.now_s())

    def _parse(self, job: Job) -> Claim | None:
        try:
            return protocol.parse(job.comment)
        except ClaimError as error:
            words = f"job {job.ref.address} of {job.user}: malformed claim, nothing done: {error}"
            self.core.alert("claim.malformed", words, key=job.ref.address)
            return None

    async def _weigh(self, job: Job, claim: Claim) -> None:
        core = self.core
        if not claim.incident:
            words = f"job {job.ref.address} of {job.user}: a claim without an incident, nothing done"
            core.alert("claim.malformed", words, key=job.ref.address)
            return
        key = incident_key(job, claim.incident)
        if claim.restart != job.restart_count or core.journal.incident(key) is not None:
            return  # of an earlier attempt, or weighed before: one incident once
        decision = await self._decide(job, claim)
        if isinstance(decision, Refusal):
            await self._refuse(job, claim, key, decision.reason)
            return
        row = self.row(job, claim, key, decision)
        if not core.acting:
            self._observe(row, decision)
            return
        if (other := self.recoveries.of_job(job.ref.job_id)) is not None:
            self.recoveries.supersede(other.row.key, f"the job itself asked ({claim.incident})")
        for action in decision.actions:
            if action.kind is ActionKind.QUARANTINE:
                self.ledger.quarantine(
                    Quarantine(
                        action.target, key, job.ref.job_id, claim.lineage, decision.reason, core.now_s(), core.now_s()
                    )
                )
        self.recoveries.start(row)

    def _refusal(self, job: Job, claim: Claim) -> Refusal | None:
        """Why this claim may not stand, as far as that can be told without asking Slurm."""
        core = self.core
        if (other := self.recoveries.of_job(job.ref.job_id)) is not None and other.recovery.kind != NODE_LOST:
            return Refusal(f"the job is on its way back already ({other.row.id})")
        usage = usage_of(core.journal, self.recoveries, job, core.now_s(), claim.step)
        if refusal := check_claim(job, claim, usage, core.config):
            return refusal
        drains = core.config.quarantine.claims == "drain" and core.acting
        if claim.evict and (self.breaker.why_open or (drains and not self.breaker.allows(frozenset(claim.evict)))):
            return Refusal(f"the breaker is open: {self.breaker.why_open}")
        return None

    async def _decide(self, job: Job, claim: Claim) -> Recovery | Refusal:
        core = self.core
        if refusal := self._refusal(job, claim):
            return refusal
        # The batched reading is up to seconds old, and has no exclusions: everything is looked at anew before deciding.
        now_job = await core.call(core.client.job, job.ref)
        if now_job is None or (now_job.restart_count, now_job.comment) != (job.restart_count, job.comment):
            return Refusal("the job has moved on meanwhile")
        why = claim.why or "the job asked to be requeued"
        if self.as_user:
            return plan_owner(now_job, claim.evict, why)
        await core.read_nodes()
        await core.read_reservations()
        now_s, room = core.now_s(), core.config.quarantine.claims
        return self._refusal(now_job, claim) or plan(
            CLAIM,
            now_job,
            claim.evict,
            why,
            cluster=core.world.cluster(),
            config=core.config,
            now_s=now_s,
            room=room,
            incident=claim.incident,
            earlier=core.journal.evicted(job.ref.job_id, job.user),
        )

    def times_of(self, claim: Claim) -> dict[str, float]:
        """The stamps of a claim that can be true."""
        return {k: v for k, v in claim.times.items() if k in TIME_KEYS and 0 < v < self.core.now_s() + 60}

    def row(self, job: Job, claim: Claim, key: str, decision: Recovery | None) -> IncidentRow:
        """What a claim says, as an incident of the journal."""
        core, times = self.core, self.times_of(claim)
        return IncidentRow(
            key=key,
            id=claim.incident,
            job_id=job.ref.job_id,
            job=job.ref.address,
            user=job.user,
            cluster=core.cluster_name,
            restart=job.restart_count,
            start_at_s=job.start_at_s,
            kind=OWNER if self.as_user else CLAIM,
            mode=core.mode.value,
            opened_at_s=core.now_s(),
            lineage=claim.lineage,
            verdict={
                "conclusion": claim.conclusion,
                "confidence": claim.confidence,
                "why": claim.why,
                "suspects": list(claim.evict),
                "step": claim.step,
                "at_s": claim.at_s,
            },
            recovery=decision,
            times={**times, "accepted": core.now_s()} if decision else times,
            report=report_folder(job),
            seat=decision is not None and bool(decision.seat),
        )

    def _observe(self, row: IncidentRow, decision: Recovery) -> None:
        reason = f"not acted on: {decision.reason}"
        self._close(row, "observed", reason)
        self.core.info("plan.observed", f"{row.key}: would have acted: {decision.reason}")

    async def _refuse(self, job: Job, claim: Claim, key: str, reason: str) -> None:
        core, address = self.core, job.ref.address
        core.alert("claim.refused", f"job {address} of {job.user}: {reason}", key=address)
        # A job that floods us gets no more than a few rows and answers an hour; the rest is only counted by the log.
        if not self._answers.take(address, core.now_s()):
            return
        self._close(self.row(job, claim, key, None), "refused", reason)
        if core.acting and not self.as_user:
            answer = {"state": "refused", "incident": claim.incident}
            await self.actor.perform(key, Action(ActionKind.ANSWER, address, reason, answer))

    def _close(self, row: IncidentRow, outcome: str, reason: str) -> None:
        self.core.journal.add_incident(row)
        self.core.journal.update_incident(
            row.key, state=CLOSED, outcome=outcome, reason=reason, closed_at_s=self.core.now_s(), seat=0
        )

    async def _site_first(self, job: Job, claim: Claim) -> bool:
        """A user's own daemon leaves a claim to the site's, where that one lives: its leave stands on the nodes."""
        core, now_s = self.core, self.core.now_s()
        try:
            answer = protocol.parse_answer(job.admin_comment)
        except ClaimError:
            answer = None
        if answer is not None and answer.incident == claim.incident:
            return True
        key = incident_key(job, claim.incident)
        if key not in self._yielding:
            await core.read_nodes()
            site = any(parse_permit(n.comment, now_s) for n in core.world.nodes.values() if n.name in job.nodes)
            self._yielding = {key: now_s + (YIELD_S if site else 0.0), **dict(list(self._yielding.items())[:255])}
        return now_s < self._yielding[key]

    def merge_times(self, job: Job, claim: Claim) -> None:
        """A later attempt tells when it was where; its first new step closes the incident."""
        core = self.core
        if claim.restart != job.restart_count or not claim.times:
            return
        # The loss of a node was nobody's claim: the next attempt's times are its times too.
        where = "job_id = ? AND state = ? AND (id = ? OR (kind = ? AND restart = ?))"
        values = (job.ref.job_id, RUNNING, claim.incident, NODE_LOST, job.restart_count - 1)
        found = core.journal.incidents(where, values, 1)
        if not found or found[0].restart >= job.restart_count:
            return
        row = found[0]
        fresh = {k: v for k, v in self.times_of(claim).items() if v > row.opened_at_s - DAY_S}
        # What the daemon saw with its own eyes stays.
        fresh = {k: v for k, v in fresh.items() if k not in ("stopped", "running") or k not in row.times}
        core.journal.update_incident(row.key, times=fresh)
        if "first_new_step" in fresh:
            reason = f"step {claim.step} reached" if claim.step >= 0 else "it reached a new step"
            core.journal.update_incident(
                row.key, state=CLOSED, outcome="resumed", reason=reason, closed_at_s=core.now_s()
            )
            core.info("incident.closed", f"{row.key}: {reason}")
