"""Tells people of trainings that Slurm has forgotten while they ran, as after a slurmctld without its saved state.

A job that ended is shown for `MinJobAge`, and the accounting has its end. There is no job left to bring back, so people
are only told. The message stays in the journal, and in the status for a day.
"""

from __future__ import annotations

import json
from typing import Any

from slurm_robust.daemon.api.needs import lost_trainings
from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.records.trainings import Trainings
from slurm_robust.daemon.store.attempt_ledger import SupervisedAttempt
from slurm_robust.slurm.client import PastRun
from slurm_robust.slurm.errors import SlurmError

KEY = "lost_jobs"
MOST = 50
"""Jobs that are kept for status."""
BEFORE_S = 60.0
"""The accounting is asked for runs from so long before their last sight on."""
ACCOUNTING_S = 20.0
MARGIN_S = 2.0


class LostJobs:
    """Compares what `Trainings` saw vanish with the accounting."""

    def __init__(self, context: DaemonContext, trainings: Trainings) -> None:
        self.context, self.trainings = context, trainings
        self._told: list[dict[str, Any]] = json.loads(context.journal.get(KEY, "[]"))

    def shown(self) -> list[dict[str, Any]]:
        """Return for the snapshot: the lost jobs of the last day."""
        since_s = self.context.now_s() - DAY_S
        return [job for job in self._told if job["seen_at_s"] > since_s]

    async def tick(self) -> None:
        """Tell people of lost jobs, after each reading of the jobs."""
        context, now_s = self.context, self.context.now_s()
        gone, self.trainings.vanished = self.trainings.vanished, []
        gone = [row for row in gone if now_s - row.times.seen_at_s < DAY_S]
        if not gone or not (lost := await self._lost(gone, now_s)):
            return
        new = [
            {"job": row.times.job, "user": row.user, "name": row.name, "seen_at_s": row.times.seen_at_s} for row in lost
        ]
        self._told = (self.shown() + new)[-MOST:]
        context.journal.put(KEY, json.dumps(self._told))
        context.alert("training.vanished", lost_trainings(new))

    async def _lost(self, gone: list[SupervisedAttempt], now_s: float) -> list[SupervisedAttempt]:
        """Return the jobs that have not ended, as far as the accounting knows."""
        context = self.context
        from_s = min(row.times.seen_at_s for row in gone) - BEFORE_S
        runs = list[PastRun]()
        try:
            window = (int(from_s), int(now_s) + 1)
            runs = await context.call(context.client.past_runs, *window, timeout_s=ACCOUNTING_S)
        except SlurmError as error:
            context.info("accounting.unread", str(error), key="lost")
        known = {(run.job_id, run.user, run.started_at_s): run for run in runs}
        lost = []
        for row in gone:
            run = known.get((row.job_id, row.user, row.run_at_s))
            recent = now_s - row.times.seen_at_s < context.min_job_age_s - MARGIN_S
            if run.ended_at_s is None if run is not None else recent:
                lost.append(row)
        return lost
