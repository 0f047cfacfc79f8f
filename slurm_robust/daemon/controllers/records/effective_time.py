"""Computes how effectively each training uses its time, now, for the state that the daemon publishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_robust.core.training_time import Stop, TrainingAttempt, divided, ettr, spent, within
from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.records.trainings import Trainings
from slurm_robust.daemon.store.attempt_ledger import AttemptLedger
from slurm_robust.marks import claim as protocol
from slurm_robust.marks.claim import Claim, ClaimError
from slurm_robust.slurm.client import Job

HOUR_S = 3600.0
AGAIN_S = 30.0
"""The time for which a result is reused if the job's claim has not changed."""
NOTHING: Mapping[str, Any] = {"ettr": None, "ettr_hour": None, "spent": {}, "speed_s": None, "step_at_s": None}


@dataclass(frozen=True)
class ShownTraining:
    """The last shown state of a training, with the job's comment that it was made from, and its time."""

    at_s: float
    comment: str
    state: str
    values: Mapping[str, Any]


class EffectiveTimes:
    """The effective times of every supervised job that runs or waits for its requeue."""

    def __init__(self, context: DaemonContext, trainings: Trainings, ledger: AttemptLedger) -> None:
        self.context, self.trainings, self.ledger = context, trainings, ledger
        self._shown: dict[int, ShownTraining] = {}

    def of(self, job: Job) -> Mapping[str, Any]:
        """Return `ettr` and `ettr_hour` (0 to 1, or None), `spent` (seconds by category), `speed_s`, `step_at_s`."""
        now_s, known = self.context.now_s(), self._shown.get(job.ref.job_id)
        if known and (known.comment, known.state) == (job.comment, job.state) and 0 <= now_s - known.at_s < AGAIN_S:
            return known.values
        values = NOTHING
        with self.context.aside("the effective time of trainings"):
            values = self._computed(job, now_s)
        jobs = self.context.readings.jobs
        if len(self._shown) > 2 * len(jobs):
            self._shown = {i: shown for i, shown in self._shown.items() if i in jobs}
        self._shown[job.ref.job_id] = ShownTraining(now_s, job.comment, job.state, values)
        return values

    def _computed(self, job: Job, now_s: float) -> Mapping[str, Any]:
        try:
            claim = protocol.parse(job.comment)
        except ClaimError:
            claim = None
        if claim is None:
            return NOTHING
        attempts = self._attempts(job, claim)
        if not attempts:
            return NOTHING
        since_s = attempts[0].start_at_s - DAY_S
        stops = self.ledger.stops(job.ref.job_id, job.user, since_s)
        if claim.suspected_at_s > max((s.noticed_at_s or 0.0 for s in stops), default=0.0):
            stops.append(Stop({"suspected": claim.suspected_at_s}))
        spans = divided(attempts, stops, now_s)
        whole, hour = ettr(spans), ettr(within(spans, now_s - HOUR_S, now_s))
        return {
            "ettr": round(whole, 4) if whole is not None else None,
            "ettr_hour": round(hour, 4) if hour is not None else None,
            "spent": {what.value: round(seconds, 1) for what, seconds in spent(spans).items() if seconds},
            "speed_s": attempts[-1].step_s or None,
            "step_at_s": attempts[-1].last_step_at_s,
        }

    def _attempts(self, job: Job, claim: Claim) -> list[TrainingAttempt]:
        """Return the training's attempts, oldest first, including the attempt that runs or waits."""
        job_id, running = job.ref.job_id, self.trainings.running.get(job.ref.job_id)
        own = running.times if running is not None and running.times.lineage == claim.lineage else None
        attempts = self.ledger.times_of(job_id, job.user, claim.lineage)
        if own is not None:
            attempts = [a for a in attempts if (a.restart, a.start_at_s) != (own.restart, own.start_at_s)] + [own]
        if job.state == "PENDING" and attempts:
            last = attempts[-1]
            waits_since_s = last.end_at_s or last.seen_at_s
            attempts.append(
                TrainingAttempt(last.lineage, last.job, job.restart_count, last.nodes, last.gpus, waits_since_s, 0.0)
            )
        return attempts
