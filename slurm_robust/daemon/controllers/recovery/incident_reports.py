"""Writes down the actions of jobs without the daemon, and closes incidents that no other part closes.

A job that only observes, restarts its step within its own allocation, or stops, does not ask the daemon. It reports the
plan in its claim, so that an admin finds it among the incidents.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from time import gmtime, strftime

from slurm_robust.core.model import BESIDE, Mode, Plan, Road, road_words
from slurm_robust.daemon.api.needs import LEFT_ALONE
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.recovery.claim_intake import MARK, ClaimIntake
from slurm_robust.daemon.controllers.recovery.incident_rows import incident_key, reached
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.rate_limit import RateLimit
from slurm_robust.daemon.store.journal import CLOSED, RUNNING, IncidentRow
from slurm_robust.marks import claim as protocol
from slurm_robust.marks.claim import Claim, ClaimError
from slurm_robust.policy.cluster.leaf_faults import unmarked
from slurm_robust.policy.cluster.recovery_plan import REPORT
from slurm_robust.policy.cluster.recovery_step import ENDED
from slurm_robust.policy.job.live_loss import says_lost
from slurm_robust.slurm.client import Job

REPORTS, WINDOW_S = 10, 3600.0
"""A job that floods the daemon gets no more rows than that in an hour."""
HANGS_S = 10.0
"""A job whose program has ended withdraws its suspicion sooner, or ends."""
_FINAL = {Road.STOP: "stopped", Road.ALERT_ONLY: "alerted"}
"""Roads after which nothing more happens, and the outcome that they give the incident."""


class IncidentReports:
    """Reads the reports of all jobs, including jobs that have just ended: a last claim is often a report."""

    def __init__(self, context: DaemonContext, intake: ClaimIntake, recoveries: Recoveries) -> None:
        self.context, self.intake, self.recoveries = context, intake, recoveries
        self._read: dict[int, tuple[str, int, bool]] = {}
        self._limit = RateLimit(REPORTS, WINDOW_S)
        self._hanging: dict[str, float] = {}
        """Incident's key → since when nothing is done about a hang."""
        self._told: set[str] = set()
        self._at_ease: dict[int, Claim] = {}
        """Jobs that suspect nothing, with the claim by which it was seen whether a hang that was told is over."""

    def tick(self) -> None:
        """Read new reports, and close finished incidents, after each reading of the jobs."""
        jobs = self.context.readings.jobs
        self._read = {i: text for i, text in self._read.items() if i in jobs}
        for job in jobs.values():
            ended = job.state in ENDED
            text = (job.comment, job.restart_count, ended)
            if MARK not in job.comment or self._read.get(job.ref.job_id) == text:
                continue
            if not (ended or job.state == "RUNNING") or (self.intake.as_user and job.user != self.context.account):
                continue
            self._read[job.ref.job_id] = text
            try:
                self._read_claim(job, ended=ended)
            except sqlite3.OperationalError:
                del self._read[job.ref.job_id]
                raise  # a full disk: no report can be written down
            except Exception as error:  # noqa: BLE001 (an error with one user's report must not delay the others)
                self.context.own_error(error, f"job {job.ref.address} of {job.user}: its report is ignored")
        self._close_finished()
        self._tell_hangs()
        self._tell_moves()

    def _read_claim(self, job: Job, *, ended: bool) -> None:
        try:
            claim = protocol.parse(job.comment)
        except ClaimError:
            return  # the intake has logged it
        if claim is None or claim.restart != job.restart_count or not claim.incident:
            return
        claim = replace(claim, why=unmarked(claim.why))
        if ended:
            self.intake.merge_times(job, claim)
        own = set(job.nodes)
        plan = claim.plan(tuple(n for n in claim.evict if n in own))
        if plan is not None and claim.state != protocol.STATE_WANTS_REQUEUE:
            row = self._row(job, claim, plan)
            if row is not None and row.state != CLOSED:
                self._follow(row, claim, plan)

    def _row(self, job: Job, claim: Claim, plan: Plan) -> IncidentRow | None:
        """Return the report's incident, written down now if it is new; None if the job has reported too much."""
        context = self.context
        # The same incident may lead to a claim later (no spare was left): the claim gets the plain key.
        key = f"{incident_key(job, claim.incident)}.{plan.road.value}"
        row = context.journal.incident(key)
        if row is None and self._limit.take(job.ref.address, context.now_s()):
            suspects = tuple(n for n in claim.suspects if n in job.nodes) or plan.evict
            row = self.intake.row(job, claim, None)
            incident = replace(row.incident, verdict=claim.verdict(suspects), plan=plan)
            mode = Mode.ACT.value if claim.mode == Mode.ACT.value else Mode.OBSERVE.value
            row = replace(row, key=key, kind=REPORT, mode=mode, incident=incident)
            try:
                context.journal.add_incident(row)
            except sqlite3.OperationalError:
                self._limit.give_back(job.ref.address)  # a full disk: it is read again
                raise
            said = "reported" if mode == Mode.ACT.value else "observed"
            context.info(f"plan.{said}", f"{key}: {claim.why}", key=key, user=job.user)
        return row

    def _follow(self, row: IncidentRow, claim: Claim, plan: Plan) -> None:
        """Note the present result of the job's own plan."""
        journal, times = self.context.journal, self.intake.times_of(claim)
        if says_lost(claim.why) and (row.mode == Mode.OBSERVE.value or plan.road is Road.ALERT_ONLY):
            self._tell_bad_loss(row, claim)
        if row.mode == Mode.OBSERVE.value:
            why = BESIDE if claim.own_mode == Mode.ACT.value else "the job only observes"
            self._close(row, "observed", f"{why}: nothing was done")
        elif plan.road in _FINAL:
            self._close(row, _FINAL[plan.road], claim.why)
        elif "first_new_step" in times:
            self._close(row, "resumed", reached(claim))
        elif "running" in times:
            reason = "its step was started again in the allocation; a new step of the training is awaited"
            journal.update_incident(row.key, state=RUNNING, outcome="running", reason=reason)
        journal.update_incident(row.key, times=times)

    def _close_finished(self) -> None:
        """Close incidents that no other part closes: a later incident replaced them, or the job has ended."""
        context = self.context
        followed = {f.row.key for f in self.recoveries.open.values()}
        for row in context.journal.unfinished():
            if row.key in followed:
                continue
            later = context.journal.incidents(
                "job_id = ? AND user = ? AND opened_at_s > ? AND key != ?",
                (row.job_id, row.user, row.incident.opened_at_s, row.key),
            )
            job = context.readings.jobs.get(row.job_id)
            if later:
                # Newest first: the one that followed this is the last.
                name = later[-1].incident.id
                self._close(row, "superseded", f"the job's next incident ({name}) came before a new step was told")
            elif job is None or job.user != row.user:
                self._close(row, "ended", "the job has ended, and Slurm does not know it any more")
            elif job.state in ENDED:
                self._close(row, "ended", f"the job ended ({job.state}) before it reported a new step")

    def _tell_hangs(self) -> None:
        """Tell a person once of each hang that nothing is done about."""
        hanging, now_s = self._left_alone(suspected=True), self.context.now_s()
        self._hanging = {row.key: min(self._hanging.get(row.key, now_s), now_s) for row, _ in hanging}
        self._told.intersection_update(self._hanging)
        for row, claim in hanging:
            if row.key not in self._told and now_s - self._hanging[row.key] >= HANGS_S:
                self._told.add(row.key)
                self._tell_hang(row, claim)

    def _tell_moves(self) -> None:
        """Say once that a reported hang is over: the job moves again without any action."""
        supervised = self.intake.supervised
        for row, claim in self._left_alone(suspected=False):
            if self._was_told("training.hangs", row) and not self._was_told("training.moves", row):
                anew = claim.restart > row.attempt.restart_count
                how = "the job was started anew" if anew else "it moves again by itself, and nothing was done"
                self.context.info("training.moves", f"{row.key}: {how}", key=row.key, user=row.user)
        self._at_ease = {i: claim for i, claim in supervised.items() if not claim.suspected_at_s}

    def _left_alone(self, *, suspected: bool) -> list[tuple[IncidentRow, Claim]]:
        """Return running jobs that still suspect a fault, or no longer do, with the incident that left them alone.

        Jobs without a suspicion are returned only if their claim is new.
        """
        found, context = [], self.context
        for job_id, claim in self.intake.supervised.items():
            job = context.readings.jobs.get(job_id)
            if bool(claim.suspected_at_s) is not suspected or self._at_ease.get(job_id) is claim:
                continue
            if not claim.incident or job is None or claim.restart != job.restart_count:
                continue
            rows = context.journal.incidents("job_id = ? AND user = ?", (job_id, job.user), 1)
            if rows and claim.suspected_at_s > rows[0].incident.opened_at_s:
                continue  # it suspects something else since, which it has not judged yet
            if rows and rows[0].incident.id == claim.incident and rows[0].outcome in LEFT_ALONE:
                found.append((rows[0], claim))
        return found

    def _was_told(self, what: str, row: IncidentRow) -> bool:
        """Return whether the log has this event of the incident, under any plan, even from an earlier daemon."""
        incident = row.key.partition(row.incident.id)[0] + row.incident.id
        query = "SELECT 1 FROM events WHERE what = ? AND (text LIKE ? || ': %' OR text LIKE ? || '.%: %')"
        db = self.context.journal.db
        return db.execute(query, (what, incident, incident)).fetchone() is not None

    def _tell_bad_loss(self, row: IncidentRow, claim: Claim) -> None:
        idle = "alert only" if row.mode == Mode.ACT.value else "the job only observes"
        self.context.alert(
            "training.bad_loss", f"{row.key}: nothing is done ({idle}): {claim.why}", key=row.key, user=row.user
        )

    def _tell_hang(self, row: IncidentRow, claim: Claim) -> None:
        if self._was_told("training.hangs", row):
            return
        why = {"observed": "mode observe", "refused": "its claim was refused"}.get(row.outcome, "alert only")
        before = f" before {_utc(claim.acts_at_s)}" if claim.acts_at_s > self.context.now_s() else ""
        if row.outcome == "observed" and row.kind == REPORT and claim.own_mode == Mode.ACT.value:
            why, before = BESIDE, ""
        elif row.outcome == "observed" and claim.road:
            why += f"; in mode act: {f'nothing{before}' if before else road_words(claim.road)}"
            before = ""
        elif before and row.outcome == "alerted":
            why = "the evidence is not sure enough"
        since_s = min(claim.suspected_at_s, claim.progress.get("last") or claim.suspected_at_s)
        since = _utc(max(0.0, min(since_s, self.context.now_s())))
        text = f"{row.key}: nothing is done{before} ({why}), since {since}: {claim.why}"
        self.context.alert("training.hangs", text, key=row.key, user=row.user)

    def _close(self, row: IncidentRow, outcome: str, reason: str) -> None:
        self.context.journal.close_incident(row.key, outcome, reason, self.context.now_s())
        self.context.info("incident.closed", f"{row.key}: {outcome}: {reason}", key=row.key, user=row.user)


def _utc(at_s: float) -> str:
    return strftime("%H:%M:%S UTC", gmtime(at_s))
