"""Sums runs of jobs in groups: their number, the GPU time they used, how long they waited and ran.

GPU time = GPUs × time between start and end (or now) within the window. Waiting = from eligible to start, once for each
run that started. Left out of waiting: runs that never started (`never_started`), and starts before the job was eligible
(`odd`), which only come from clocks that disagree.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_robust.report.facts import RanJob
from slurm_robust.report.figures.spread import Spread, spread

HOUR_S = 3600.0


@dataclass(frozen=True)
class JobGroup:
    """The sums of some runs.

    Attributes:
        share: The share of all runs.
        gpu_share: The share of the GPU time of all runs; None if no run used a GPU.
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


class RunTimes(NamedTuple):
    """The time that a run waited and ran, as far as known; computed once for all groups of the run."""

    waited_s: float | None
    ran_s: float | None
    never_started: bool
    odd: bool


def run_times(job: RanJob) -> RunTimes:
    """Return how long this run waited and ran."""
    begun_s, ended_s = job.started_at_s, job.ended_at_s
    if begun_s is None:
        return RunTimes(None, None, never_started=True, odd=False)
    waited_s = None if job.eligible_at_s is None else begun_s - job.eligible_at_s
    odd = waited_s is not None and waited_s < 0
    if odd and job.state == "REQUEUED":
        # A start time that a requeue gives the job becomes the eligible time of the run that it ends.
        waited_s, odd = None, False
    ran_s = ended_s - begun_s if ended_s is not None and ended_s >= begun_s else None
    return RunTimes(None if odd else waited_s, ran_s, never_started=False, odd=odd)


@dataclass
class GroupSums:
    """A group while rows are added: eight bytes for each time."""

    runs: int = 0
    gpu_s: float = 0.0
    never_started: int = 0
    odd: int = 0
    waits: array[float] = field(default_factory=lambda: array("d"))
    lasts: array[float] = field(default_factory=lambda: array("d"))

    def add(self, gpu_s: float, times: RunTimes) -> None:
        """Count one run."""
        self.runs += 1
        self.gpu_s += gpu_s
        self.never_started += times.never_started
        self.odd += times.odd
        if times.waited_s is not None:
            self.waits.append(times.waited_s)
        if times.ran_s is not None:
            self.lasts.append(times.ran_s)


def finished(groups: Mapping[str, GroupSums]) -> tuple[JobGroup, ...]:
    """Return the groups in the order in which they are shown."""
    runs = sum(sums.runs for sums in groups.values())
    gpu_s = sum(sums.gpu_s for sums in groups.values())
    return tuple(
        JobGroup(
            *(name, sums.runs, sums.runs / runs, sums.gpu_s / HOUR_S, sums.gpu_s / gpu_s if gpu_s else None),
            *(spread(sums.waits), spread(sums.lasts), sums.never_started, sums.odd),
        )
        for name, sums in groups.items()
    )
