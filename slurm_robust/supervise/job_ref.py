"""Reads the job that this process runs in from the environment alone, without asking Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class NoJobError(Exception):
    """There is no job to supervise; the message contains the command to type."""


class JobIds(NamedTuple):
    """A job's ids from the environment: like `model.JobRef`, but a launch need not wait for its module."""

    job_id: int
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_offset: int | None = None

    @property
    def address(self) -> str:
        """The job's name for Slurm's commands, as in `model.JobRef.address`."""
        return str(self.job_id) if self.array_job_id is None else f"{self.array_job_id}_{self.array_task_id}"


def ids_from_environment(env: Mapping[str, str]) -> JobIds:
    """Return the job that this process runs in.

    Raises:
        NoJobError: the process runs outside of any job.
    """
    raw = env.get("SLURM_JOB_ID", "")
    if not raw.isdigit():
        raise NoJobError("this is not inside a Slurm job (SLURM_JOB_ID is not set); use it in an sbatch file or salloc")
    array, task = env.get("SLURM_ARRAY_JOB_ID", ""), env.get("SLURM_ARRAY_TASK_ID", "")
    if array.isdigit() and task.isdigit():
        return JobIds(int(raw), int(array), int(task))
    if env.get("SLURM_HET_SIZE", "").isdigit():
        return JobIds(int(raw), het_offset=0)
    return JobIds(int(raw))
