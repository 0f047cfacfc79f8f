"""Counts the seats that were given within a day, and has people told of the caps that keep jobs from one."""

from __future__ import annotations

from collections.abc import Callable

from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.store.seat_bars import SeatBars
from slurm_robust.policy.cluster.recovery_plan import Refusal, Usage, check_caps
from slurm_robust.slurm.client import Job

AGAIN_S = 60.0
"""A cap that was reached is looked at again so often: seats are a day old, or end."""


class SeatCaps:
    """The caps of one daemon."""

    def __init__(self, context: DaemonContext, bars: SeatBars, active: Callable[[], int]) -> None:
        self.context, self.bars, self._active = context, bars, active
        self._reached: dict[str, Job] = {}
        self._looked_at_s = 0.0

    def usage(self, job: Job, step: int = -1) -> Usage:
        """Count the seats given so far; `step` is the highest that the job reports."""
        journal, now_s = self.context.journal, self.context.now_s()
        since_s = now_s - DAY_S
        running = (j for j in self.context.readings.jobs.values() if j.user == job.user and j.state == "RUNNING")
        return Usage(
            active=self._active(),
            user_day=journal.seats_since(since_s, user=job.user),
            user_fruitless=journal.seats_since(since_s, user=job.user, fruitless=True),
            job_day=journal.seats_since(since_s, job_id=job.ref.job_id),
            job_fruitless=journal.fruitless_seats(since_s, job.ref.job_id, step),
            user_nodes=sum(len(j.nodes) for j in running),
            job_nodes=len(job.nodes),
            barred=self.bars.why(job.user, now_s),
        )

    def refusal(self, job: Job) -> Refusal | None:
        """Return why this job gets no seat without a claim."""
        return self.told(job, check_caps(self.usage(job), self.context.config))

    def told(self, job: Job, refusal: Refusal | None) -> Refusal | None:
        """Return the refusal; if it is for a cap, `srobust status` and an alert tell people until that is over."""
        if refusal is not None and refusal.cap and self.context.acting:
            self._reached[job.user] = job
            text = f"user {job.user} gets no seat ({refusal.reason}): their jobs requeue themselves plainly and wait"
            text += " for nodes like others; if their faults are real, raise the cap in robust.yaml and reload srobustd"
            self.context.trouble(_about(job), text)
        return refusal

    def look_again(self) -> None:
        """Forget the caps that do not hold any more."""
        now_s = self.context.now_s()
        if 0 <= now_s - self._looked_at_s < AGAIN_S:
            return
        self._looked_at_s = now_s
        for user, job in list(self._reached.items()):
            if check_caps(self.usage(job), self.context.config) is None:
                del self._reached[user]
                self.context.trouble(_about(job), "")


def _about(job: Job) -> str:
    return f"seats of {job.user}"
