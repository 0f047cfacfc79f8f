"""How much of the machine became training progress?

Goodput = productive GPU hours of supervised trainings / GPU hours that the cluster had. Held = GPU hours that these
trainings held (without their queueing). Used = GPU hours of all jobs, by Slurm's accounting. Capacity = nodes × GPUs by
class over time, drained nodes included. Left out: trainings without a supervisor; their GPU hours are only in `used`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_robust.core.spent_time import Spent
from slurm_robust.daemon.store.attempt_ledger import ClusterSize
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.trainings import GPU, NODE, Training, unit_of

HOUR_S = 3600.0


@dataclass(frozen=True)
class Goodput:
    """Hours of GPUs (or nodes); None if a source does not say.

    Attributes:
        unit: `gpu` or `node`.
    """

    unit: str
    productive: float | None
    held: float | None
    used: float | None
    capacity: float | None

    @property
    def of_held(self) -> float | None:
        """The productive share of the GPU hours that the trainings held."""
        return _share(self.productive, self.held)

    @property
    def of_capacity(self) -> float | None:
        """Productive of all that the cluster had."""
        return _share(self.productive, self.capacity)

    @property
    def utilisation(self) -> float | None:
        """Used by any job, of all that the cluster had."""
        return _share(self.used, self.capacity)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def goodput(facts: Facts, trainings: Sequence[Training]) -> Goodput:
    """Productive, held, used and available hours of the window."""
    unit = unit_of(trainings) if trainings else (GPU if any(size.gpus for size in facts.sizes) else NODE)
    productive = held = 0.0
    for training in trainings:
        for span, weight in training.weighed(unit):
            productive += span.shares.get(Spent.PRODUCTIVE, 0.0) * weight
            held += (sum(span.shares.values()) - span.shares.get(Spent.QUEUE, 0.0)) * weight
    return Goodput(
        unit,
        productive / HOUR_S if trainings else None,
        held / HOUR_S if trainings else None,
        _used_hours(facts, unit) if facts.jobs else None,
        capacity_hours(facts, unit),
    )


def _used_hours(facts: Facts, unit: str) -> float:
    total = 0.0
    for job in facts.jobs:
        if job.started_at_s is not None:
            end_s = job.ended_at_s if job.ended_at_s is not None else facts.read_at_s
            seconds = min(end_s, facts.to_s) - max(job.started_at_s, facts.from_s)
            total += max(0.0, seconds) * (job.gpus if unit == GPU else job.node_count)
    return total / HOUR_S


def capacity_hours(facts: Facts, unit: str) -> float | None:
    """GPU or node hours that the cluster had; None if its size is not known from the begin of the window on."""
    classes: dict[str, list[ClusterSize]] = defaultdict(list)
    for size in sorted(facts.sizes, key=lambda row: row.at_s):
        classes[size.gres].append(size)
    if not classes or min(sizes[0].at_s for sizes in classes.values()) > facts.from_s:
        return None
    total = 0.0
    for sizes in classes.values():
        for number, size in enumerate(sizes):
            end_s = sizes[number + 1].at_s if number + 1 < len(sizes) else facts.to_s
            seconds = max(0.0, min(end_s, facts.to_s) - max(size.at_s, facts.from_s))
            total += seconds * size.nodes * (size.gpus if unit == GPU else 1)
    return total / HOUR_S or None
