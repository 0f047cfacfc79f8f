"""Keeps the journal true to what jobs do by themselves, and closes incidents that nobody comes back to.

A job that only observes, starts its step anew in its own allocation, or stops, asks the daemon for nothing. It reports
the plan in its claim, and an admin finds it among the incidents.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from slurm_robust import claim as protocol
from slurm_robust.claim import Claim, ClaimError
from slurm_robust.daemon.controllers.claim_intake import MARK, Intake, incident_key
from slurm_robust.daemon.controllers.recoveries import Recoveries
from slurm_robust.daemon.core import Core, Ration
from slurm_robust.daemon.store.journal import CLOSED, RUNNING, IncidentRow
from slurm_robust.model import Mode, Road
from slurm_robust.policy.cluster.recovery_plan import REPORT
from slurm_robust.policy.cluster.recovery_step import ENDED
from slurm_robust.slurm.client import Job

REPORTS, WINDOW_S = 10, 3600.0
"""A job that floods us gets no more rows than that in an hour."""
_ROADS = frozenset(road.value for road in Road)
_OVER = {Road.STOP.value: "stopped", Road.ALERT_ONLY.value: "alerted"}
"""Roads after which nothing more is to come of the incident, and what it then came to."""


class Reports:
    """Listens to all jobs, also to those that ended a moment ago: a last word is often a report."""

    def __init__(self, core: Core, intake: Intake, recoveries: Recoveries) -> None:
        self.core, self.intake, self.recoveries = core, intake, recoveries
        self._heard: dict[int, tuple[str, int, bool]] = {}
        self._ration = Ration(REPORTS, WINDOW_S)

    def tick(self) -> None:
        """After each reading of the jobs."""
        jobs = self.core.world.jobs
        self._heard = {i: h for i, h in self._heard.items() if i in jobs}
        for job in jobs.values():
            ended = job.state in ENDED
            said = (job.comment, job.restart_count, ended)
            if MARK not in job.comment or self._heard.get(job.ref.job_id) == said:
                continue
            if not (ended or job.state == "RUNNING") or (self.intake.as_user and job.user != self.core.account):
                continue
            self._heard[job.ref.job_id] = said
            try:
                self._hear(job, ended=ended)
            except sqlite3.OperationalError:
                del self._heard[job.ref.job_id]
                raise  # a full disk: nobody's report can be written down
            except Exception as error:  # noqa: BLE001 (one user's words must not keep the others unheard)
                self.core.broken(error, f"job {job.ref.address} of {job.user}: its report is passed over")
        self._close()

    def _hear(self, job: Job, *, ended: bool) -> None:
        try:
            claim = protocol.parse(job.comment)
        except ClaimError:
            return  # the intake tells of it
        if claim is None or claim.restart != job.restart_count or not claim.incident:
            return
        if ended:
            self.intake.merge_times(job, claim)
        if claim.road in _ROADS and claim.state != protocol.STATE_WANTS_REQUEUE:
            self._report(job, claim)

    def _report(self, job: Job, claim: Claim) -> None:
        core, own = self.core, set(job.nodes)
        # The same incident may come to a claim later (no spare was left): that one gets the plain key, and a plan.
        key = f"{incident_key(job, claim.incident)}.{claim.road}"
        row = core.journal.incident(key)
        if row is None:
            if not self._ration.take(job.ref.address, core.now_s()):
                return
            row = self.intake.row(job, claim, key, None)
            verdict = {**row.verdict, "road": claim.road, "evict": [n for n in claim.evict if n in own]}
            verdict["suspects"] = [n for n in claim.suspects if n in own] or verdict["evict"]
            mode = Mode.ACT.value if claim.mode == Mode.ACT.value else Mode.OBSERVE.value
            row = replace(row, kind=REPORT, mode=mode, verdict=verdict)
            core.journal.add_incident(row)
            core.info(f"plan.{'reported' if mode == Mode.ACT.value else 'observed'}", f"{key}: {claim.why}", key=key)
        if row.state == CLOSED:
            return
        times = self.intake.times_of(claim)
        if row.mode == Mode.OBSERVE.value:
            self._end(row, "observed", "the job only observes: nothing was done")
        elif claim.road in _OVER:
            self._end(row, _OVER[claim.road], claim.why)
        elif "first_new_step" in times:
            self._end(row, "resumed", f"step {claim.step} reached" if claim.step >= 0 else "it reached a new step")
        elif "running" in times:
            reason = "its step was started anew in the allocation; a new step of the training is awaited"
            core.journal.update_incident(row.key, state=RUNNING, outcome="running", reason=reason)
        core.journal.update_incident(row.key, times=times)

    def _close(self) -> None:
        """Close what nobody comes back to: a later incident of the job took over, or the job has ended."""
        core = self.core
        followed = {f.row.key for f in self.recoveries.open.values()}
        for row in core.journal.incidents("state != ?", (CLOSED,)):
            if row.key in followed:
                continue
            later = core.journal.incidents(
                "job_id = ? AND user = ? AND opened_at_s > ? AND key != ?",
                (row.job_id, row.user, row.opened_at_s, row.key),
            )
            job = core.world.jobs.get(row.job_id)
            if later:
                # The newest comes first; the one that followed this is the last.
                self._end(row, "superseded", f"no new step came before the job's next incident ({later[-1].id})")
            elif job is None or job.user != row.user:
                self._end(row, "ended", "the job is over, and Slurm does not know it any more")
            elif job.state in ENDED:
                self._end(row, "ended", f"the job ended ({job.state}) before it told of a new step")

    def _end(self, row: IncidentRow, outcome: str, reason: str) -> None:
        core = self.core
        core.journal.update_incident(row.key, state=CLOSED, outcome=outcome, reason=reason, closed_at_s=core.now_s())
        core.info("incident.closed", f"{row.key}: {outcome}: {reason}", key=row.key)
