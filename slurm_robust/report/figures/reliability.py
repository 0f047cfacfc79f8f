"""How long do trainings run between failures, and how fast are they back, by job size?

MTTF of a size = hours in which attempts of that size ran / failures in them. r_f = failures / node-days, the rate that
Meta publishes for 1,000 node-days. Both have the exact (Garwood) Poisson interval. MTTR = from the fault to the first
step that had not been made before, so it includes recomputation: median with an interval from order statistics, 90th
percentile, mean. Left out: queueing before an attempt, jobs without a supervisor, failures of unknown size (such
failures count in the sum), and repairs that have not ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_robust.daemon.store.attempt_ledger import SupervisedAttempt
from slurm_robust.policy.cluster.failure_rate import FailureRate, failure_rate
from slurm_robust.report.facts import ClosedIncident, Facts
from slurm_robust.report.figures.failures import is_failure, is_infrastructure, nodes_of, sizes_by_attempt
from slurm_robust.report.figures.size_classes import SizeClass, size_class
from slurm_robust.report.figures.spread import Spread, spread

HOUR_S, DAY_S = 3600.0, 86400.0


@dataclass(frozen=True)
class ReliabilityRow:
    """One size of jobs, or all of them (`size` None).

    Attributes:
        size: The numbers of nodes.
        attempts: The number of attempts that ran in the window.
        by_hours: Failures over hours of running: `mean_time` is the MTTF in hours.
        by_node_days: Failures over node-days.
        infrastructure: Failures over node-days, by hardware, network and storage alone.
        back_s: Seconds from the fault to the first step after it that had not been made before.
    """

    size: SizeClass | None
    attempts: int
    by_hours: FailureRate
    by_node_days: FailureRate
    infrastructure: FailureRate
    back_s: Spread


@dataclass(frozen=True)
class Reliability:
    """All sizes, smallest first, and their sum.

    Attributes:
        failures_without_size: Failures of jobs of unknown size: these failures are only in the sum.
    """

    rows: tuple[ReliabilityRow, ...]
    total: ReliabilityRow
    failures_without_size: int


def ran_s(attempt: SupervisedAttempt, facts: Facts) -> float:
    """Return how long the attempt ran within the window; 0 if its times cannot be true."""
    times = attempt.times
    end_s = times.end_at_s if times.end_at_s is not None else facts.read_at_s
    return max(0.0, min(end_s, facts.to_s) - max(times.start_at_s, facts.from_s))


def time_back_s(incident: ClosedIncident) -> float | None:
    """Return the time from the fault until training is as far as before; None if unknown or out of order."""
    fault_s, back_s = incident.times.get("fault", incident.opened_at_s), incident.times.get("first_new_step")
    return back_s - fault_s if back_s is not None and back_s >= fault_s else None


def reliability(facts: Facts) -> Reliability:
    """MTTF, failure rates and MTTR of supervised jobs, by size."""
    attempts: dict[SizeClass, list[SupervisedAttempt]] = defaultdict(list)
    incidents: dict[SizeClass, list[ClosedIncident]] = defaultdict(list)
    for attempt in facts.attempts:
        if ran_s(attempt, facts) > 0:
            attempts[size_class(attempt.times.nodes)].append(attempt)
    sizes = sizes_by_attempt(facts)
    failures = [row for row in facts.incidents if is_failure(row) and facts.from_s <= row.opened_at_s < facts.to_s]
    for incident in failures:
        incidents[size_class(nodes_of(incident, sizes))].append(incident)
    unknown = size_class(0)
    rows = tuple(
        _row(size, attempts.get(size, []), incidents.get(size, []), facts)
        for size in sorted({*attempts, *incidents} - {unknown})
    )
    every = [attempt for found in attempts.values() for attempt in found]
    return Reliability(rows, _row(None, every, failures, facts), len(incidents.get(unknown, [])))


def _row(
    size: SizeClass | None, attempts: list[SupervisedAttempt], failures: list[ClosedIncident], facts: Facts
) -> ReliabilityRow:
    hours = sum(ran_s(attempt, facts) for attempt in attempts) / HOUR_S
    node_days = sum(ran_s(attempt, facts) * attempt.times.nodes for attempt in attempts) / DAY_S
    broken = sum(is_infrastructure(row) for row in failures)
    return ReliabilityRow(
        size,
        len(attempts),
        failure_rate(len(failures), hours),
        failure_rate(len(failures), node_days),
        failure_rate(broken, node_days),
        spread(_known(time_back_s(row) for row in failures)),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
