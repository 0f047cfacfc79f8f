"""Writes down every attempt of every supervised training, from readings and claims that the daemon has anyway.

An attempt is written when it begins, when its steps begin, and when it ends; in between once a minute, for all
attempts in one transaction. Times come from the claim (steps, untrusted) and from Slurm (start and end).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slurm_robust.core.training_time import TrainingAttempt
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.recovery.claim_intake import ClaimIntake
from slurm_robust.daemon.store.attempt_ledger import DONE, VANISHED, AttemptLedger, SupervisedAttempt
from slurm_robust.marks import claim as protocol
from slurm_robust.marks.claim import Claim, ClaimError
from slurm_robust.policy.cluster.recovery_step import ENDED
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.values import gpu_count

WRITE_EVERY_S = 60.0
"""The time between two writes of values that only grow (the last step, when the job was last seen)."""
_SAME_STEP_S = 0.5
_MOST_RESTARTS = 200
"""Restarts within one run that are remembered one by one."""
_MOST_LINEAGES = 50
"""Trainings in one run of a job: a script may have many; a job that makes up names gets no more rows."""
_REQUEUED = "REQUEUED"
_AWAY_S = 60.0
"""The time without a reading after which launches may have come and gone without a claim that tells them."""


class Trainings:
    """The attempts that run, and how they end."""

    def __init__(self, context: DaemonContext, intake: ClaimIntake, ledger: AttemptLedger) -> None:
        self.context, self.intake, self.ledger = context, intake, ledger
        self.running: dict[int, SupervisedAttempt] = {row.job_id: row for row in ledger.unfinished()}
        """The running attempts by the job's raw id, including trainings that are done while their job goes on."""
        self._claims: dict[int, Claim] = {}
        self._dirty: dict[tuple[int, int, int, str], SupervisedAttempt] = {}
        self._seen_s = 0.0
        """The reading before: all rows ran then. 0 before this daemon's first one."""
        self._away = False
        """Whether the daemon did not read for a while before this reading."""
        self._ended: list[SupervisedAttempt] = []
        """Whose job's end was seen since the last writing."""
        self._write_at_s = 0.0
        self.vanished: list[SupervisedAttempt] = []
        """Attempts whose jobs Slurm does not know any more; `lost_jobs` takes them from here to tell people."""

    def restart_timers(self) -> None:
        """Write at once, since the clock was set back."""
        self._write_at_s = 0.0

    def tick(self) -> None:
        """Compare attempts with jobs and claims, after each reading of the jobs."""
        jobs, now_s, urgent = self.context.readings.jobs, self.context.now_s(), False
        self._away = self.context.readings.jobs_at_s - self._seen_s > _AWAY_S
        for job_id in list(self.running):
            if not _same_run(self.running[job_id], jobs.get(job_id)):
                urgent = self._end(job_id, jobs.get(job_id)) or urgent
        for job_id, claim in self.intake.claims.items():
            job = jobs.get(job_id)
            if job is not None and job.state == "RUNNING":
                urgent = self._follow(job, claim) or urgent
        self._seen_s, self._away = self.context.readings.jobs_at_s, False
        if urgent or now_s >= self._write_at_s:
            self._write(now_s)

    def _sighted(self, row: SupervisedAttempt) -> SupervisedAttempt:
        """Return the row with its last sight: all running attempts were in the last reading."""
        return row.timed(seen_at_s=self._seen_s or row.times.seen_at_s) if row.times.end_at_s is None else row

    def _write(self, now_s: float) -> None:
        if now_s >= self._write_at_s:
            self._write_at_s = now_s + WRITE_EVERY_S
            self._dirty |= {row.key: self._sighted(row) for row in self.running.values()}
        self.ledger.write(self._dirty.values())
        self._dirty.clear()
        for row in self._ended:
            self.ledger.end_run(row)
        self._ended.clear()

    # -- an attempt that runs -----------------------------------------------------------------------------------------

    def _follow(self, job: Job, claim: Claim) -> bool:
        """Bring the row of a running job up to date; True if that is to be written at once."""
        row = self.running.get(job.ref.job_id)
        if row is not None and claim.lineage == row.times.lineage and self._claims.get(row.job_id) is claim:
            return False
        if claim.state == protocol.STATE_DONE and (row is None or row.times.lineage != claim.lineage):
            return False  # it was over before anybody saw it
        begun = row is None or row.times.lineage != claim.lineage
        if row is None or begun:
            if not self._may_begin(job, row):
                return False
            if row is not None:
                self._close(row, row.state or DONE, row.times.end_at_s or self._told_at_s(claim))
            row = self._begin(job, claim, again=row is not None)
        if self.context.readings.nodes:  # else it is read again: the GPUs that a job tells are compared with its nodes'
            self._claims[row.job_id] = claim
        fresh = self._told(row, job, claim)
        if claim.state == protocol.STATE_DONE and claim.restart == job.restart_count and not fresh.state:
            fresh = replace(fresh.timed(end_at_s=self._told_at_s(claim)), state=DONE)
        self.running[row.job_id] = fresh
        urgent = begun or _milestones(fresh) != _milestones(row)
        if urgent:
            self._dirty[fresh.key] = fresh
        return urgent

    def _may_begin(self, job: Job, row: SupervisedAttempt | None) -> bool:
        known = (job.ref.job_id, job.restart_count, job.start_at_s)
        return row is None or self.ledger.lineages_of_run(*known) < _MOST_LINEAGES

    def _begin(self, job: Job, claim: Claim, *, again: bool) -> SupervisedAttempt:
        """Return a new attempt; `again`: the run has had another training before."""
        now_s = self.context.now_s()
        start_at_s = min(now_s, self._told_at_s(claim)) if again else float(job.start_at_s)
        times = TrainingAttempt(
            lineage=claim.lineage,
            job=job.ref.address,
            restart=job.restart_count,
            nodes=len(job.nodes),
            gpus=0,
            eligible_at_s=start_at_s if again else float(job.eligible_at_s or job.submit_at_s or job.start_at_s),
            start_at_s=start_at_s,
            seen_at_s=now_s,
        )
        cluster = self.context.cluster_name
        who = (cluster, job.ref.job_id, job.user, job.name, job.partition, job.nodes)
        return SupervisedAttempt(*who, times, run_at_s=job.start_at_s)

    def _told_at_s(self, claim: Claim) -> float:
        """Return when the claim was written, limited to times that can be true."""
        now_s = self.context.now_s()
        return claim.at_s if 0 < claim.at_s <= now_s else now_s

    def _told(self, row: SupervisedAttempt, job: Job | None, claim: Claim) -> SupervisedAttempt:
        """Return the row with what a claim of this very attempt tells."""
        if claim.restart != row.times.restart or claim.lineage != row.times.lineage:
            return row
        told, times, now_s = claim.progress, row.times, self.context.now_s()
        at_s = {name: told[name] for name in ("first", "new", "last") if 0 < told.get(name, 0.0) < now_s + 60}
        most_s = max(0.0, now_s - row.run_at_s)
        steps = _steps(times, at_s.get("first"), at_s.get("new"))
        if self._away:
            steps |= _unwatched(times, steps, claim)
        return row.timed(
            **steps,
            last_step_at_s=at_s.get("last", times.last_step_at_s),
            last_step=max(times.last_step, _whole(told.get("step", -1.0))),
            # After a restart within the attempt the claim tells that one's checkpoint.
            resume_step=claim.resume_step if times.first_step_at_s is None else times.resume_step,
            checkpoint_s=max(times.checkpoint_s, min(most_s, told.get("ckpt", 0.0))),
            slow_s=max(times.slow_s, min(most_s, told.get("slow", 0.0))),
            step_s=told["pace"] if 0 < told.get("pace", 0.0) < most_s else times.step_s,
            report_every_s=min(86400.0, max(0.0, told.get("every", times.report_every_s))),
            gpus=self._gpus(row, job, told) or times.gpus,
        )

    def _gpus(self, row: SupervisedAttempt, job: Job | None, told: Mapping[str, float]) -> int:
        """Return the GPUs by Slurm's record of the job; else by the claim, but no more than the nodes have."""
        if job is not None and (given := gpu_count(job.gres)):
            return given * len(row.nodes)
        nodes = self.context.readings.nodes
        most = sum(gpu_count(nodes[name].gres) for name in row.nodes if name in nodes)
        return max(0, min(most, _whole(told.get("gpus", 0.0))))

    # -- how it ends --------------------------------------------------------------------------------------------------

    def _end(self, job_id: int, job: Job | None) -> bool:
        """End an attempt whose run is over, or ends; return True if that was seen now."""
        row, now_s = self._sighted(self.running[job_id]), self.context.now_s()
        if job is None or _is_another(job, row):
            if row.times.end_at_s is None:
                self.vanished.append(row)
            self._close(row, VANISHED, row.times.end_at_s or row.times.seen_at_s)
            return True
        requeued = job.restart_count != row.times.restart or job.start_at_s != row.run_at_s or job.state == "PENDING"
        if not requeued and job.state not in ENDED and not job.completing:
            return False  # suspended, or stopped: it lives, and makes no steps
        row = self._last_words(row, job)
        # Slurm's own stamp, if it lies between the last sight and now.
        stamps = (job.end_at_s, job.submit_at_s if requeued else 0)
        near = [float(t) for t in stamps if row.times.seen_at_s - 1 <= t <= now_s + 1]
        ended_at_s = row.times.end_at_s or min([*near, now_s])
        if job.completing and not requeued and job.state not in ENDED:
            first = row.times.end_at_s is None
            self.running[job_id] = row.timed(end_at_s=ended_at_s)
            self._dirty[row.key] = self.running[job_id]
            return first
        self._close(row, _REQUEUED if requeued else job.state, ended_at_s)
        return True

    def _last_words(self, row: SupervisedAttempt, job: Job) -> SupervisedAttempt:
        """Return the row with what its job's last claim tells."""
        try:
            claim = protocol.parse(job.comment)
        except ClaimError:
            return row
        if claim is None:
            return row
        row = self._told(row, None, claim)
        if claim.state == protocol.STATE_DONE and row.times.end_at_s is None and claim.restart == row.times.restart:
            return row.timed(end_at_s=self._told_at_s(claim))
        return row

    def _close(self, row: SupervisedAttempt, state: str, end_at_s: float) -> None:
        self.running.pop(row.job_id, None)
        self._claims.pop(row.job_id, None)
        closed = replace(row.timed(end_at_s=end_at_s), state=state)
        self._dirty[closed.key] = closed
        if state != DONE:
            self._ended.append(closed)


def _is_another(job: Job, row: SupervisedAttempt) -> bool:
    """Return whether the id is another job's by now.

    Each requeue counts up, and a slurmctld without its state begins anew.
    """
    newer = job.restart_count == row.times.restart and job.submit_at_s > row.run_at_s
    return job.user != row.user or job.restart_count < row.times.restart or newer


def _same_run(row: SupervisedAttempt, job: Job | None) -> bool:
    """Return whether the job still runs this attempt."""
    if job is None or job.state != "RUNNING" or job.user != row.user:
        return False
    return (job.restart_count, job.start_at_s) == (row.times.restart, row.run_at_s)


def _milestones(row: SupervisedAttempt) -> tuple[object, ...]:
    """Return the values whose change is written at once."""
    times = row.times
    return times.first_step_at_s, times.first_new_step_at_s, times.restarts_within, times.end_at_s, row.state


def _steps(times: TrainingAttempt, first: float | None, new: float | None) -> dict[str, Any]:
    """Return first steps of the attempt, and of its restarts: each claim tells the steps of the latest launch."""
    if first is None:
        return {}
    if times.first_step_at_s is None or abs(first - times.first_step_at_s) < _SAME_STEP_S:
        own = times.first_step_at_s if times.first_step_at_s is not None else first
        return {"first_step_at_s": own, "first_new_step_at_s": times.first_new_step_at_s or new}
    within = list(times.restarts_within)
    last = within[-1] if within else (times.first_step_at_s, None)
    if within and abs(first - last[0]) < _SAME_STEP_S:
        within[-1] = (last[0], last[1] or new)
    elif first > last[0] and len(within) < _MOST_RESTARTS:
        within.append((first, new))
    return {"restarts_within": tuple(within)}


def _unwatched(times: TrainingAttempt, steps: Mapping[str, Any], claim: Claim) -> dict[str, Any]:
    """Return the time that was not seen before a launch that is new after a while without readings.

    It ends with the incident that the launch tells, which may be the last of several.
    """
    within = steps.get("restarts_within", times.restarts_within)
    if times.first_step_at_s is None and "first_step_at_s" in steps:
        # An incident before the first step that is told: a launch before it may have made steps.
        begin_s, first_s = times.start_at_s, steps["first_step_at_s"]
        fault_s = claim.times.get("fault", 0.0)
        return {"unwatched": ((begin_s, fault_s),)} if begin_s < fault_s < first_s else {}
    if len(within) == len(times.restarts_within):
        return {}
    begin_s, first_s = max(times.seen_at_s, times.last_step_at_s or 0.0), within[-1][0]
    told = [claim.times.get(name, 0.0) for name in ("fault", "suspected", "decided")]
    end_s = next((at_s for at_s in told if begin_s < at_s < first_s), first_s)
    return {"unwatched": (*times.unwatched, (begin_s, end_s))} if end_s > begin_s else {}


def _whole(number: float) -> int:
    return int(number) if math.isfinite(number) and abs(number) < 2**53 else -1
