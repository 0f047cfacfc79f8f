"""Runs of jobs in groups: how many, what they used, how long they waited and ran.

GPU time = GPUs × time between start and end (or now) within the window. Waiting = from eligible to start, once for each
run that started. Left out of waiting: runs that never started (`never_started`), and starts before the job was
eligible (`odd`), which only clocks that disagree give.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_robust.report.facts import RanJob
from slurm_robust.report.figures.spread import Spread, spread

HOUR_S = 3600.0


@dataclass(frozen=True)
class JobGroup:
    """Some runs.

    Attributes:
        share: Of all runs.
        gpu_share: Of the GPU time of all runs; None where no run used a GPU.
        waited_s: Seconds from eligible to start.
        ran_s: Seconds from start to end, of runs that have ended.
    """

    name: str
    runs: int
    share: float
    gpu_hours: float
    gpu_share: float | None
    waited_s: Spread
    ran_s: Spread
    never_started: int
    odd: int


@dataclass
class GroupSums:
    """A group while rows are added: eight bytes for each time."""

    runs: int = 0
    gpu_s: float = 0.0
    never_started: int = 0
    odd: int = 0
    waits: array[float] = field(default_factory=lambda: array("d"))
    lasts: array[float] = field(default_factory=lambda: array("d"))

    def add(self, job: RanJob, gpu_s: float) -> None:
        """Count one run."""
        self.runs += 1
        self.gpu_s += gpu_s
        if job.started_at_s is None:
            self.never_started += 1
            return
        if job.eligible_at_s is not None:
            waited_s = job.started_at_s - job.eligible_at_s
            if waited_s >= 0:
                self.waits.append(waited_s)
            else:
                self.odd += 1
        if job.ended_at_s is not None and job.ended_at_s >= job.started_at_s:
            self.lasts.append(job.ended_at_s - job.started_at_s)


def finished(groups: Mapping[str, GroupSums]) -> tuple[JobGroup, ...]:
    """The groups as they are shown, in their order."""
    runs = sum(sums.runs for sums in groups.values())
    gpu_s = sum(sums.gpu_s for sums in groups.values())
    return tuple(
        JobGroup(
            *(name, sums.runs, sums.runs / runs, sums.gpu_s / HOUR_S, sums.gpu_s / gpu_s if gpu_s else None),
            *(spread(sums.waits), spread(sums.lasts), sums.never_started, sums.odd),
        )
        for name, sums in groups.items()
    )
