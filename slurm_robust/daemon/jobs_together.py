"""Reads several jobs in two calls to Slurm; one after the other they would need two calls each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from slurm_robust.core.model import JobRef
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmError


class JobsTogether:
    """Reads several jobs that are decided on in one go. A reading is used for `max_age_s`."""

    def __init__(self, context: DaemonContext, max_age_s: float) -> None:
        self.context, self.max_age_s = context, max_age_s
        self._read: dict[JobRef, Job | None] = {}
        self._at_s = 0.0

    async def read(self, jobs: Sequence[JobRef]) -> None:
        """Read these jobs; a single one is left to `job`, and so are all where Slurm gives no answer."""
        self._read = {}
        if len(jobs) > 1:
            with contextlib.suppress(SlurmError):
                found = await self.context.call(self.context.client.jobs_named, jobs)
                self._read = dict(zip(jobs, found, strict=True))
                self._at_s = self.context.now_s()

    def has(self, job: JobRef) -> bool:
        """Return whether this job was read a moment ago."""
        return job in self._read and 0 <= self.context.now_s() - self._at_s < self.max_age_s

    async def job(self, job: JobRef) -> Job | None:
        """Return the job with its exclusions, read a moment ago or now; None if Slurm does not know it (any more)."""
        if self.has(job):
            return self._read[job]
        return await self.context.call(self.context.client.job, job)
