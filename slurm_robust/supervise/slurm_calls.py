"""What the wrapper itself does to Slurm, as the job's owner. All else is the daemon's; a test reads this table."""

from __future__ import annotations

from typing import NamedTuple

READING = frozenset({"nodes", "node", "jobs", "job", "reservations", "cluster_name", "settings"})
"""Methods of `SlurmClient` that change nothing: they may be called anywhere."""


class SlurmCall(NamedTuple):
    """One place.

    Attributes:
        module: Below `supervise`.
        call: The method of `SlurmClient`, or the program.
        why: What it is for.
    """

    module: str
    call: str
    why: str


ALLOWED = (
    SlurmCall("job", "update_job", "writes the claim into the job's Comment"),
    SlurmCall("recover.requeue_wait", "requeue", "requests a plain requeue, where the daemon's does not come"),
    SlurmCall("recover.step_control", "signal", "kills the training step"),
)
STARTED_PROGRAMS = (
    SlurmCall("launch.srun_command", "srun", "the user's own step; the launcher starts it"),
    SlurmCall("launch.srun_refusal", "srun", "asks srun for its version, to learn whether it takes its options"),
    SlurmCall("watch.watch_step", "srun", "the watch step, with one agent on each node"),
)
