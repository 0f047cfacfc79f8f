"""Reads every job of a time from Slurm's accounting, day by day, so that no answer is large."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from sys import intern
from typing import Protocol

from slurm_robust.report.facts import RanJob
from slurm_robust.report.sources.wording import examples, utc
from slurm_robust.slurm.client import PastRun
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import expand

DAY_S = 86400
CALL_S = 60.0
"""The time limit for one day's answer."""
TOTAL_S = 600.0
"""The time limit for all answers."""
_LATER_S = 600
"""How far the last call looks ahead: a requeued job is pending from a moment that lies minutes ahead."""


@dataclass(frozen=True)
class AccountedJobs:
    """The answer of the accounting.

    Attributes:
        jobs: The runs in the order of their starts.
        whole: False if the accounting did not answer, or not to the end.
    """

    jobs: tuple[RanJob, ...]
    doubts: tuple[str, ...]
    whole: bool


class AccountingClient(Protocol):
    """The part of a `SlurmClient` that is used here."""

    unread: dict[str, list[str]]

    def past_runs(self, from_s: int, to_s: int, *, timeout_s: float) -> list[PastRun]:
        """Return each run of every job at some moment of this time."""


@dataclass(frozen=True)
class Window:
    """A day of the time that is read.

    Attributes:
        from_s: None for the first one.
        to_s: None for the last one.
    """

    begin_s: float
    end_s: float
    from_s: float | None
    to_s: float | None

    def has(self, run: PastRun) -> bool:
        """Tell whether the run counts here: a run of several days is in each answer, and counts where it ends."""
        if run.ended_at_s is None:
            return self.to_s is None
        early = self.from_s is not None and run.ended_at_s < self.from_s
        return not early and (self.to_s is None or run.ended_at_s < self.to_s)


def windows(from_s: float, to_s: float) -> tuple[Window, ...]:
    """Return the days of a time, counted from its begin."""
    count = max(1, math.ceil((to_s - from_s) / DAY_S))
    begins = [from_s + number * DAY_S for number in range(count)]
    ends = [*begins[1:], to_s]
    froms, tos = [None, *begins[1:]], [*ends[:-1], None]
    return tuple(Window(*row) for row in zip(begins, ends, froms, tos, strict=True))


def read(
    client: AccountingClient, from_s: float, to_s: float, now_s: float, clock_s: Callable[[], float]
) -> AccountedJobs:
    """Return the runs of all jobs, in the order of their starts, and doubts; runs read before an error stay."""
    jobs: list[RanJob] = []
    doubts: list[str] = []
    whole = True
    left_out: dict[str, None] = {}
    made = _Maker()
    deadline_s = clock_s() + TOTAL_S
    for window in windows(from_s, to_s):
        later_s = _LATER_S if window.to_s is None and to_s >= now_s else 0
        # Slurm rounds to seconds: at both ends one more.
        first_s, last_s = max(0, int(window.begin_s) - 1), int(window.end_s + later_s) + 1
        try:
            # A call after the deadline is cut off at once.
            runs = client.past_runs(first_s, last_s, timeout_s=min(CALL_S, max(0.01, deadline_s - clock_s())))
        except SlurmError as error:
            doubts.append(_unread(error, window.begin_s, any_read=window.from_s is not None))
            whole = False
            break
        jobs += (made.job(run) for run in runs if window.has(run))
        left_out.update(dict.fromkeys(client.unread.get("past_runs", ())))
    if left_out:
        doubts.append(f"The accounting has runs that cannot be read, and are missing: {examples(list(left_out))}.")
    counted = _numbered(jobs)
    if counted and not any(job.gpus for job in counted):
        doubts.append(
            "The accounting knows no GPUs of any job: it tracks them where slurm.conf has "
            "AccountingStorageTRES=gres/gpu. GPU hours of jobs that are not supervised are not known."
        )
    return AccountedJobs(counted, tuple(doubts), whole)


def _unread(error: SlurmError, begin_s: float, *, any_read: bool) -> str:
    message = " ".join(f"{error}".split())[:300]
    what = f"from {utc(begin_s)} on " if any_read else ""
    rest = "Jobs that are not supervised are missing." if not any_read else "Later jobs are missing."
    return f"The accounting was not read {what}({message}). {rest} Check slurmdbd: sacctmgr show cluster"


class _Maker:
    """Makes rows that share their texts: a month has few users, partitions and node names."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[str, ...]] = {}

    def job(self, run: PastRun) -> RanJob:
        """Return the row of a run, without its number among the runs of its job."""
        return RanJob(
            cluster=intern(run.cluster),
            job=run.job,
            job_id=run.job_id,
            restart=0,
            user=intern(run.user),
            account=intern(run.account),
            name=intern(run.name),
            partition=intern(run.partition),
            nodes=self._expanded(run.nodes),
            node_count=run.node_count,
            gpus=run.gpus,
            submitted_at_s=run.submitted_at_s,
            eligible_at_s=run.eligible_at_s,
            started_at_s=run.started_at_s,
            ended_at_s=run.ended_at_s,
            state=intern(run.state),
            exit_code=intern(run.exit_code),
        )

    def _expanded(self, folded: str) -> tuple[str, ...]:
        known = self._nodes.get(folded)
        if known is None:
            try:
                known = tuple(map(intern, expand(folded, remember=False)))
            except SlurmError:
                known = ()
            if len(self._nodes) < 100_000:
                self._nodes[folded] = known
        return known


def _numbered(jobs: list[RanJob]) -> tuple[RanJob, ...]:
    """Return the runs in order of time, each with the number of earlier runs of its job."""

    def at_s(job: RanJob) -> float:
        return job.started_at_s or job.eligible_at_s or job.submitted_at_s or job.ended_at_s or 0.0

    jobs.sort(key=lambda job: (at_s(job), job.job_id))
    several = {key for key, count in Counter((job.job_id, job.user) for job in jobs).items() if count > 1}
    before: Counter[tuple[int, str]] = Counter()
    for place, job in enumerate(jobs):
        if (key := (job.job_id, job.user)) in several:
            jobs[place] = replace(job, restart=before[key])
            before[key] += 1
    return tuple(jobs)
