"""Jobs of the contract tests."""

from __future__ import annotations

from helpers import wait_until

from slurm_robust.core.model import JobRef
from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.slurm.client import Job, SlurmClient

SLEEPER = "#!/bin/sh\nexec sleep 300\n"


class Jobs:
    """Submits jobs and forgets none."""

    def __init__(self, cluster: DevCluster, client: SlurmClient) -> None:
        self._cluster = cluster
        self._client = client
        self.submitted: list[int] = []

    def submit(self, *args: str, script: str = SLEEPER, user: str | None = None) -> int:
        """Submit a job as a user (root if not given); its id, as sbatch prints it."""
        argv = ["sbatch", "--parsable", "-o", "/dev/null", *args]
        said = self._cluster.run(argv, input=script, user=user).stdout
        self.submitted.append(int(said))
        return int(said)

    def wait(self, ref: JobRef, *states: str) -> Job:
        """Wait until a job is in one of these states."""

        def seen() -> Job | None:
            job = self._client.job(ref)
            return job if job and job.state in states else None

        return wait_until(seen, 15, f"job {ref.address} {'/'.join(states)}")

    def release(self, ref: JobRef) -> None:
        """Let a held job go."""
        self._cluster.run(["scontrol", "release", ref.address])

    def steps(self, ref: JobRef) -> set[str]:
        """The numbered steps that the job has now."""
        said = self._cluster.run(["squeue", "-h", "-s", "-j", ref.address, "-o", "%i"]).stdout.split()
        return {step.split(".")[1] for step in said if step.split(".")[1].isdigit()}
