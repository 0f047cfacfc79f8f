"""What broke in the runs that did not complete, and how much GPU time did they use?

The cause is the category of the run's incident (`diagnose.taxonomy`); without an incident, Slurm's state, if that names
a cause; a run that only FAILED is `unknown`. As Acme counts it, lost GPU time is all time of such runs;
`figures.failure_costs` has the real loss of a training that went on from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_robust.report.facts import ClosedIncident, RanJob
from slurm_robust.report.figures.failures import UNKNOWN, category_of, is_failure, is_infrastructure

HOUR_S = 3600.0
FAILED = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"})
"""States that count as failed: not cancelled, out of time, preempted or requeued."""
_BY_STATE: Mapping[str, tuple[str, bool]] = {
    "NODE_FAIL": ("node_lost", True),
    "BOOT_FAIL": ("node_lost", True),
    "OUT_OF_MEMORY": ("host_oom", False),
    "FAILED": (UNKNOWN, False),
}
APART_S = 2
"""Journal and accounting may tell the start of the same run so differently."""
RunKey = tuple[str, int, int]


@dataclass(frozen=True)
class FailureKind:
    """Runs that failed by the same cause.

    Attributes:
        infrastructure: A node, or something that nodes share, was at fault.
        share: The share of all failed runs.
        gpu_share: The share of the GPU time of all failed runs; None if they used no GPU.
    """

    category: str
    infrastructure: bool
    runs: int
    share: float
    gpu_hours: float
    gpu_share: float | None


def causes_of(incidents: Iterable[ClosedIncident]) -> dict[RunKey, tuple[str, bool]]:
    """Return category and whether it is infrastructure, by cluster, job and start; the last failure of a run counts.

    If the start is not known, the number of the restart stands for it.
    """
    rows = sorted((row for row in incidents if is_failure(row)), key=lambda row: row.opened_at_s)
    return {(row.cluster, row.job_id, _start_of(row)): (category_of(row), is_infrastructure(row)) for row in rows}


def _start_of(incident: ClosedIncident) -> int:
    told = incident.attempt.rpartition(".")[2]  # as in `model.Attempt.key`
    return (int(told) if told.isdecimal() and len(told) < 20 else 0) or incident.restart


class FailureSums:
    """Runs are added one by one."""

    def __init__(self, causes: Mapping[RunKey, tuple[str, bool]]) -> None:
        self._causes = causes
        self._runs: dict[tuple[str, bool], tuple[int, float]] = {}

    def add(self, job: RanJob, gpu_s: float) -> None:
        """Count the run if it failed, or ended with an incident."""
        if job.state not in FAILED and job.state != "REQUEUED":
            return
        cause = self._cause(job)
        if cause is None and job.state == "REQUEUED":
            return
        if cause is None or cause[0] == UNKNOWN:
            cause = _BY_STATE.get(job.state, cause or (UNKNOWN, False))
        runs, seconds = self._runs.get(cause, (0, 0.0))
        self._runs[cause] = (runs + 1, seconds + gpu_s)

    def _cause(self, job: RanJob) -> tuple[str, bool] | None:
        """Return the cause by the run's start: the accounting may begin with a later run than the job's first one."""
        start = int(job.started_at_s or 0)
        near = sorted(range(start - APART_S, start + APART_S + 1), key=lambda at_s: abs(at_s - start)) if start else []
        keys = ((job.cluster, job.job_id, number) for number in (*near, job.restart))
        return next((self._causes[key] for key in keys if key in self._causes), None)

    def kinds(self) -> tuple[FailureKind, ...]:
        """Return all kinds, the most frequent first."""
        runs = sum(n for n, _ in self._runs.values())
        gpu_s = sum(s for _, s in self._runs.values())
        rows = [
            FailureKind(category, infra, n, n / runs, s / HOUR_S, s / gpu_s if gpu_s else None)
            for (category, infra), (n, s) in self._runs.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.runs, row.category)))


def infrastructure_shares(kinds: Iterable[FailureKind]) -> tuple[float | None, float | None]:
    """Infrastructure's share of the failed runs whose cause is known, and of their GPU time; None without any."""
    known = [kind for kind in kinds if kind.category != UNKNOWN]
    runs, hours = sum(kind.runs for kind in known), sum(kind.gpu_hours for kind in known)
    broken = [kind for kind in known if kind.infrastructure]
    return (
        sum(kind.runs for kind in broken) / runs if runs else None,
        sum(kind.gpu_hours for kind in broken) / hours if hours else None,
    )
