"""Computes all about the cluster's jobs in one pass over the accounting: 500,000 rows in seconds, 60 bytes for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from slurm_robust.daemon.store.attempt_ledger import ClusterSize
from slurm_robust.policy.cluster.failure_rate import FailureRate, failure_rate
from slurm_robust.report.characterise.failure_kinds import (
    FAILED,
    FailureKind,
    FailureSums,
    causes_of,
    infrastructure_shares,
)
from slurm_robust.report.characterise.job_groups import GroupSums, JobGroup, finished, run_times
from slurm_robust.report.characterise.job_types import JobTypes
from slurm_robust.report.characterise.usage import HourOfDay, UsagePoint, UsageSums
from slurm_robust.report.facts import ClosedIncident, Facts, RanJob
from slurm_robust.report.figures.size_classes import SizeClass, size_class

DAY_S = 86400.0
_REMEMBERED = 50_000
_Key = TypeVar("_Key", str, SizeClass)


@dataclass(frozen=True)
class CharacterisationOptions:
    """The choices that a site may make.

    Attributes:
        patterns: Type → regular expression for job names; None: the expressions of `job_types`.
        offset_s: Seconds that local time is east of UTC, for the hours of the day.
        points: The number of points of utilisation over the window.
    """

    patterns: Mapping[str, str] | None = None
    offset_s: float = 0.0
    points: int = 240


@dataclass(frozen=True)
class Characterisation:
    """The jobs that ran in the window.

    Attributes:
        jobs: The number of runs that were the first of their job.
        failed_share: The share of failed runs among those that have ended; requeued runs do not count. None if no run
            has ended.
        failed_of_gpu_runs: The share of runs that failed or ran out of time, among runs with GPUs that have ended, as
            Acme publishes it. None if there are no such runs.
        node_fails: Runs that Slurm lost to a node, over the node-days of all runs.
        infrastructure_of_failures: The share of infrastructure among failed runs whose cause is known.
        infrastructure_of_gpu_time: The share of infrastructure in the GPU time of these runs.
        by_size: Groups by GPUs, or by nodes if no run has GPUs.
        unit: `gpu` or `node`: the unit of `by_size`.
        odd: The number of runs with times that cannot be true.
    """

    runs: int
    jobs: int
    unit: str
    gpu_hours: float
    by_state: tuple[JobGroup, ...]
    by_size: tuple[JobGroup, ...]
    by_type: tuple[JobGroup, ...]
    failures: tuple[FailureKind, ...]
    failed_share: float | None
    infrastructure_of_failures: float | None
    infrastructure_of_gpu_time: float | None
    node_fails: FailureRate
    usage: tuple[UsagePoint, ...]
    hours: tuple[HourOfDay, ...]
    odd: int
    sentence: str
    failed_of_gpu_runs: float | None


@dataclass(frozen=True)
class JobWindow:
    """The beginning and end of the window, and how large the cluster was."""

    from_s: float
    to_s: float
    sizes: tuple[ClusterSize, ...]


def characterise(facts: Facts, options: CharacterisationOptions | None = None) -> Characterisation:
    """Return the characterisation of all jobs of the window."""
    window = JobWindow(facts.from_s, min(facts.to_s, facts.read_at_s), facts.sizes)
    return characterise_rows(facts.jobs, window, facts.incidents, options)


def characterise_rows(
    jobs: Iterable[RanJob],
    window: JobWindow,
    incidents: Iterable[ClosedIncident] = (),
    options: CharacterisationOptions | None = None,
) -> Characterisation:
    """Return the characterisation of rows that come one by one."""
    sums = _Sums(window, causes_of(incidents), options or CharacterisationOptions())
    for job in jobs:
        sums.add(job)
    return sums.result()


class _Sums:
    def __init__(
        self,
        window: JobWindow,
        causes: Mapping[tuple[str, int, int], tuple[str, bool]],
        options: CharacterisationOptions,
    ) -> None:
        self.window, self.options = window, options
        self.types = JobTypes(options.patterns)
        self.usage = UsageSums(options.offset_s)
        self.failures = FailureSums(causes)
        self.by_state: dict[str, GroupSums] = {}
        self.by_gpus: dict[SizeClass, GroupSums] = {}
        self.by_nodes: dict[SizeClass, GroupSums] = {}
        self.by_type: dict[str, GroupSums] = {}
        self.known: dict[tuple[str, int, int, str], tuple[GroupSums, ...]] = {}
        self.runs = self.jobs = self.odd = self.ended = self.failed = self.node_fails = 0
        self.gpus_ended = self.gpus_failed = 0
        self.gpu_s = self.node_s = 0.0

    def add(self, job: RanJob) -> None:
        """Count one run of a job."""
        self.runs += 1
        self.jobs += job.restart == 0
        seconds = self._seconds(job)
        gpu_s = seconds * job.gpus
        self.gpu_s += gpu_s
        self.node_s += seconds * job.node_count
        times = run_times(job)
        for group in self._groups(job):
            group.add(gpu_s, times)
        self.failures.add(job, gpu_s)
        if job.ended_at_s is not None and job.state != "REQUEUED":
            self.ended += 1
            self.failed += job.state in FAILED
            if job.gpus:
                self.gpus_ended += 1
                self.gpus_failed += job.state in FAILED or job.state == "TIMEOUT"
        self.node_fails += job.state == "NODE_FAIL"
        if job.restart == 0 and job.submitted_at_s is not None and self._within(job.submitted_at_s):
            self.usage.submitted(job.submitted_at_s)

    def _groups(self, job: RanJob) -> tuple[GroupSums, ...]:
        """Return the groups that the run belongs to; remembered, since most runs share their groups with other runs."""
        key = (job.state, job.gpus, job.node_count, job.name)
        known = self.known.get(key)
        if known is None:
            known = (
                _group(self.by_state, job.state or "unknown"),
                _group(self.by_gpus, size_class(job.gpus)),
                _group(self.by_nodes, size_class(job.node_count)),
                _group(self.by_type, self.types.of(job.name)),
            )
            if len(self.known) < _REMEMBERED:
                self.known[key] = known
        return known

    def _within(self, at_s: float) -> bool:
        return self.window.from_s <= at_s < self.window.to_s

    def _seconds(self, job: RanJob) -> float:
        """Return how long the run ran within the window."""
        if job.started_at_s is None:
            return 0.0
        end_s = job.ended_at_s if job.ended_at_s is not None else self.window.to_s
        if end_s < job.started_at_s and job.ended_at_s is not None:
            self.odd += 1
            return 0.0
        if self._within(job.started_at_s):
            self.usage.started(job.started_at_s)
        begin_s, end_s = max(job.started_at_s, self.window.from_s), min(end_s, self.window.to_s)
        self.usage.add(begin_s, end_s, job.gpus, job.node_count)
        return max(0.0, end_s - begin_s)

    def result(self) -> Characterisation:
        window, unit = self.window, self.usage.unit
        kinds = self.failures.kinds()
        of_failures, of_gpu_time = infrastructure_shares(kinds)
        sizes = self.by_gpus if unit == "gpu" else self.by_nodes
        return Characterisation(
            runs=self.runs,
            jobs=self.jobs,
            unit=unit,
            gpu_hours=self.gpu_s / 3600.0,
            by_state=finished(_ordered(self.by_state, lambda item: (-item[1].runs, item[0]))),
            by_size=finished({size.label: sums for size, sums in sorted(sizes.items())}),
            by_type=finished(_ordered(self.by_type, lambda item: (-item[1].gpu_s, -item[1].runs, item[0]))),
            failures=kinds,
            failed_share=self.failed / self.ended if self.ended else None,
            infrastructure_of_failures=of_failures,
            infrastructure_of_gpu_time=of_gpu_time,
            node_fails=failure_rate(self.node_fails, self.node_s / DAY_S),
            usage=self.usage.points(window.from_s, window.to_s, window.sizes, self.options.points),
            hours=self.usage.hours(window.from_s, window.to_s),
            odd=self.odd + sum(sums.odd for sums in self.by_state.values()),
            sentence="" if self.runs else "Slurm's accounting has no job in this time, or was not read.",
            failed_of_gpu_runs=self.gpus_failed / self.gpus_ended if self.gpus_ended else None,
        )


def _group(groups: dict[_Key, GroupSums], key: _Key) -> GroupSums:
    found = groups.get(key)
    if found is None:
        found = groups[key] = GroupSums()
    return found


def _ordered(
    groups: dict[str, GroupSums], key: Callable[[tuple[str, GroupSums]], tuple[object, ...]]
) -> dict[str, GroupSums]:
    return dict(sorted(groups.items(), key=key))
