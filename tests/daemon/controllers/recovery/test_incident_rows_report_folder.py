"""Where the journal says that a job's reports are."""

from __future__ import annotations

import pytest

from slurm_robust.core.model import JobRef
from slurm_robust.daemon.controllers.recovery.incident_rows import report_folder
from slurm_robust.slurm.client import Job


@pytest.mark.parametrize(("job", "name"), [("12", "slurm-robust-12"), ("12_3", "slurm-robust-12_3")])
def test_it_is_the_folder_that_the_wrapper_writes(job: str, name: str) -> None:
    """A task of an array has a raw id of its own, which no person knows: the wrapper uses the address."""
    ref = JobRef.parse(job, job_id=17 if "_" in job else None)
    assert report_folder(Job(ref, "RUNNING", "u", 1, "p", std_out="/home/u/slurm-12.out")) == f"/home/u/{name}"
