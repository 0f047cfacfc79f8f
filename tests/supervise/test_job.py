"""The job's claim, and what is said where Slurm does not take it."""

from __future__ import annotations

import asyncio
import os

from slurm_robust.core.model import JobRef
from slurm_robust.marks.claim import Claim, parse, render
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmError, SlurmRefusedError
from slurm_robust.supervise.job import SupervisedJob, read


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


class Requeued:
    """A Slurm in which a job runs again, with the Comment that its last attempt left."""

    def __init__(self, before: Claim, answer: str = "") -> None:
        self.comment, self.answer = render(before), answer

    def cluster_name(self) -> str:
        """Its name."""
        return "c"

    def job(self, ref: JobRef) -> Job:
        """The job."""
        told = {"comment": self.comment, "admin_comment": self.answer}
        return Job(ref, "RUNNING", "u", os.getuid(), "main", restart_count=1, **told)

    def update_job(self, ref: JobRef, **changes: str) -> None:
        """Take the Comment."""
        self.comment = changes["comment"]


def test_the_next_attempt_repeats_a_claim_that_nobody_answered() -> None:
    """Until it has another incident: a daemon that was away reads it; one that answered has it already."""
    asked = Claim("wants", "line", 0, "i1", evict=("n2",), grade="strong", why="hang", conclusion="culprit")
    slurm = Requeued(asked)
    job = read(slurm, JobRef(5))  # type: ignore[arg-type]
    assert asyncio.run(job.write_claim(resume_step=3))
    told = parse(slurm.comment)
    assert told is not None
    assert (told.state, told.restart, told.asked, told.evict, told.grade) == ("watching", 1, 0, ("n2",), "strong")
    assert asyncio.run(job.write_claim(incident="i2"))
    told = parse(slurm.comment)
    assert told is not None
    assert told.asked == -1
    answered = Requeued(asked, '[[srobust:1 {"state":"refused","incident":"i1"}]]')
    assert read(answered, JobRef(5)).claim.asked == -1  # type: ignore[arg-type]
