"""What did failures cost, in GPU hours: by cause, by who was at fault, and by the road that led back?

Cost = detection + diagnosis + restart + recomputation of the training's divided time, times its GPUs (nodes if no GPUs
are known). Each lost stretch belongs to the last incident that had begun by its end. A loss without an incident (a job
that a person requeued, incidents older than the window) stands in a line of its own, so that all lines sum to the loss
in `time_of_all`. Left out: the hours of nodes that are drained, and slow steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_robust.report.facts import ClosedIncident, Facts
from slurm_robust.report.figures.ettr import LOST
from slurm_robust.report.figures.failures import UNKNOWN, began_at_s, category_of, is_failure
from slurm_robust.report.figures.trainings import Training, TrainingKey, key_of, unit_of, was_stopped

HOUR_S = 3600.0
UNEXPLAINED = "no incident"


@dataclass(frozen=True)
class CostRow:
    """The cost of the failures of one kind.

    Attributes:
        name: A category, a blame or a road; `no incident` for a loss without an incident.
        failures: The number of failures.
        hours: GPU hours, or node hours; None if the trainings' time is not known.
    """

    name: str
    failures: int
    hours: float | None


@dataclass(frozen=True)
class FailureCosts:
    """The costs, each table by descending cost.

    Attributes:
        unit: `gpu` or `node`: of which the hours are.
        by_incident: Hours of each incident, by its key.
    """

    unit: str
    total_hours: float | None
    by_category: tuple[CostRow, ...]
    by_blame: tuple[CostRow, ...]
    by_road: tuple[CostRow, ...]
    by_incident: dict[str, float]


def failure_costs(facts: Facts, trainings: Sequence[Training]) -> FailureCosts:
    """Return the cost of all failures of the window."""
    unit = unit_of(trainings)
    known: dict[TrainingKey, list[ClosedIncident]] = defaultdict(list)
    for incident in sorted(facts.incidents, key=began_at_s):
        if was_stopped(incident):
            known[key_of(incident)].append(incident)
    hours: dict[str, float] = defaultdict(float)
    for training in trainings:
        rows = known.get(training.key, [])
        begins = [began_at_s(row) for row in rows]
        for span, weight in training.weighed(unit):
            lost_s = sum(span.shares.get(what, 0.0) for what in LOST)
            if lost_s > 0:
                place = bisect_right(begins, span.end_at_s) - 1
                hours[rows[place].key if place >= 0 else ""] += lost_s * weight / HOUR_S
    covered = {training.key for training in trainings}

    def table(name_of: Callable[[ClosedIncident], str]) -> tuple[CostRow, ...]:
        return _table([i for rows in known.values() for i in rows], name_of, hours, covered)

    return FailureCosts(
        unit,
        sum(hours.values()) if trainings else None,
        table(category_of),
        table(lambda incident: incident.blame or UNKNOWN),
        table(lambda incident: incident.road or "none"),
        {key: value for key, value in hours.items() if key},
    )


def _table(
    incidents: Sequence[ClosedIncident],
    name_of: Callable[[ClosedIncident], str],
    hours: dict[str, float],
    covered: set[TrainingKey],
) -> tuple[CostRow, ...]:
    counts: dict[str, int] = defaultdict(int)
    sums: dict[str, float] = defaultdict(float)
    said: set[str] = set()
    for incident in incidents:
        name = name_of(incident)
        counts[name] += is_failure(incident)
        sums[name] += hours.get(incident.key, 0.0)
        if key_of(incident) in covered:
            said.add(name)
    rows = [CostRow(name, count, sums[name] if name in said else None) for name, count in counts.items()]
    if hours.get("", 0.0) > 0:
        rows.append(CostRow(UNEXPLAINED, 0, hours[""]))
    return tuple(sorted(rows, key=lambda row: (-(row.hours or 0.0), -row.failures, row.name)))
