"""The job's claim, and what is said where Slurm does not take it."""

from __future__ import annotations

import asyncio

from slurm_robust.claim import Claim
from slurm_robust.model import JobRef
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmError, SlurmRefusedError
from slurm_robust.supervise.job import SupervisedJob


class Refusing:
    """A Slurm that says no, until it does not."""

    def __init__(self) -> None:
        self.error: SlurmError | None = SlurmRefusedError("update job 5", "Access/permission denied")

    def job(self, ref: JobRef) -> Job:
        """The job."""
        return Job(ref, "RUNNING", "u", 1, "main")

    def update_job(self, ref: JobRef, **changes: str) -> None:
        """Refuse."""
        if self.error is not None:
            raise self.error


def test_a_claim_that_is_refused_keeps_slurms_words() -> None:
    """The story can say why; once Slurm takes it, nothing is left of that."""
    slurm = Refusing()
    claim = Claim("watching", "lineage")
    job = SupervisedJob(slurm, "c", slurm.job(JobRef(5)), None, claim)  # type: ignore[arg-type]
    assert not asyncio.run(job.write_claim(state="wants"))
    assert "Access/permission denied" in job.refused
    slurm.error = None
    assert asyncio.run(job.write_claim(state="wants"))
    assert job.refused == ""
