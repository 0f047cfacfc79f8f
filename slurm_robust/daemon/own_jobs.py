"""Chooses account and partition of the daemon's own jobs (rechecks, pair tests), and waits after a refusal.

A partition may take only the jobs of some accounts, or ask for a QOS. A refused job is refused again a second later, so
the daemon waits, longer each time, and tells a person. It does the same for its reservations, which slurmctld refuses
to an account without an association.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_robust.core.text import printable
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmRefusedError

FIRST_S, LONGEST_S = 30.0, 600.0
"""The first wait after a refusal, which doubles with each further one, and the longest."""
RESERVATIONS = "reservations"
NAMES = "srobust-"
"""The beginning of the names of the daemon's own jobs."""
NEVER_STARTS = re.compile(
    r"not permitted|Invalid(?:Account|QOS)|(?:Account|Qos|User)NotAllowed|Partition(?:Time|Node)Limit", re.IGNORECASE
)
"""Reasons of a waiting job that no waiting ends: without EnforcePartLimits, Slurm takes such a job."""
_LIMIT, LIMIT_AFTER_S = re.compile(r"Assoc|QOS|MaxJob", re.IGNORECASE), 60.0
"""Reasons that may end by themselves, when an earlier job of ours does; told after this time."""
_ACCOUNT = re.compile(r"account|association", re.IGNORECASE)


def is_own(job: Job, account: str) -> bool:
    """Return whether the job is one of those that the daemon, with this account, submits."""
    return job.name.startswith(NAMES) and job.user == account


class OwnJobs:
    """Remembers, by partition, what Slurm refused. Nothing of it outlives the daemon: a new one tries at once."""

    def __init__(self, context: DaemonContext) -> None:
        self.context, self.config = context, context.config.own_jobs
        self._refused: dict[str, tuple[str, int, float]] = {}
        """By partition: Slurm's words, the number of refusals in a row, and when to try again."""

    def partition(self, partitions: Sequence[str]) -> str:
        """Return the partition for a job on a node of these partitions; empty if there is none."""
        return self.config.partition_for(partitions)

    def options(self, partitions: Sequence[str]) -> list[str]:
        """Return the options of `sbatch` for account, QOS and partition."""
        return self.config.options(partitions)

    def waits(self, where: str) -> str:
        """Return why Slurm is not asked there now; empty if it may be asked."""
        why, _, until_s = self._refused.get(where, ("", 0, 0.0))
        # A clock that was set back must not keep it waiting.
        return why if until_s - LONGEST_S <= self.context.now_s() < until_s else ""

    def check(self, where: str) -> None:
        """Raise Slurm's last refusal there, if it is too early to ask again."""
        if why := self.waits(where):
            raise SlurmRefusedError(f"not asked of Slurm again yet ({where})", why)

    def refused(self, where: str, why: str) -> None:
        """Slurm refused a job in this partition, or a reservation."""
        context, said = self.context, printable(why)[:200]
        times = self._refused.get(where, ("", 0, 0.0))[1] + 1
        self._refused[where] = (said, times, context.now_s() + min(LONGEST_S, FIRST_S * 2 ** (times - 1)))
        what, left = "jobs", "suspects and standby nodes are not checked"
        place, to_do = f" in partition {where}", "set own_jobs in robust.yaml as"
        if where == RESERVATIONS:
            what, left, place = "reservations", "nothing is quarantined, held or seated", ""
            to_do = f"give {context.account} an association in Slurm's accounting, as"
        text = f"Slurm refuses the daemon's own {what}{place} ({said}), so {left}: {to_do} srobust doctor says"
        context.trouble(f"own_jobs.{where}", text)
        context.alert("own_jobs.refused", text, key=where)

    def worked(self, where: str) -> None:
        """Slurm started a job in this partition, or made a reservation."""
        if self._refused.pop(where, None) is not None:
            self.context.trouble(f"own_jobs.{where}", "")

    def note(self, job: Job | None) -> None:
        """Note from a job of ours that it has started there, or never will."""
        if job is None or not job.partition:
            return
        late = self.context.now_s() - job.submit_at_s > LIMIT_AFTER_S
        never = NEVER_STARTS.search(job.reason) or (late and _LIMIT.match(job.reason))
        if job.state == "PENDING" and never and not self.waits(job.partition):
            self.refused(job.partition, job.reason)
        elif job.state in ("RUNNING", "COMPLETED", "FAILED"):
            self.worked(job.partition)

    def of_account(self, why: str) -> bool:
        """Return whether a reservation was refused because of the daemon's account."""
        return bool(_ACCOUNT.search(why))
