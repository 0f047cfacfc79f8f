"""Which trainings ran, and what did the time of each go into?

A training is all attempts of one user's lineage on one cluster. Its time is divided by `training_time.divided`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurm_robust.core.spent_time import Span, within
from slurm_robust.core.training_time import LEFT_ALONE, Stop, divided
from slurm_robust.daemon.store.attempt_ledger import SupervisedAttempt
from slurm_robust.report.facts import ClosedIncident, Facts

NOT_STOPPED = frozenset({"came_back", "went_on"})
"""Outcomes of incidents after which the training went on by itself: it was not stopped."""
GPU, NODE = "gpu", "node"
"""The weights of time: GPUs, or nodes if the GPUs of a training are not known."""


@dataclass(frozen=True)
class TrainingKey:
    """Users choose the names of their lineages, so the name alone is not enough."""

    cluster: str
    user: str
    lineage: str


@dataclass(frozen=True)
class TrainingSize:
    """The nodes and GPUs of a training from this time on; 0 GPUs if unknown."""

    at_s: float
    nodes: int
    gpus: int


@dataclass(frozen=True)
class Training:
    """One training within the window.

    Attributes:
        job: The address of its last attempt in Slurm.
        attempts: The number of attempts that had time in the window.
        running: Whether it still ran when the facts were read.
        sizes: Its sizes in order of time.
        spans: Its time within the window.
    """

    key: TrainingKey
    name: str
    job: str
    attempts: int
    running: bool
    sizes: tuple[TrainingSize, ...]
    spans: tuple[Span, ...]

    @property
    def gpus(self) -> int:
        """The number of GPUs at the end; 0 if unknown."""
        return self.sizes[-1].gpus

    @property
    def nodes(self) -> int:
        """Return how many nodes the training had at its end."""
        return self.sizes[-1].nodes

    def weighed(self, unit: str) -> Iterator[tuple[Span, int]]:
        """Yield the spans, cut at changes of the size, with the number of GPUs or nodes."""
        ends = [*(size.at_s for size in self.sizes[1:]), float("inf")]
        for number, (size, end_s) in enumerate(zip(self.sizes, ends, strict=True)):
            begin_s = size.at_s if number else float("-inf")
            weight = size.gpus if unit == GPU else size.nodes
            for span in self.spans if len(self.sizes) == 1 else within(self.spans, begin_s, end_s):
                yield span, weight


def was_stopped(incident: ClosedIncident) -> bool:
    """Return whether the training stood still because of this incident, as far as is known."""
    return incident.outcome not in NOT_STOPPED


def key_of(row: ClosedIncident | SupervisedAttempt) -> TrainingKey:
    """Return the key of the training that the row belongs to."""
    lineage = row.lineage if isinstance(row, ClosedIncident) else row.times.lineage
    return TrainingKey(row.cluster, row.user, lineage or f"job {row.job_id}")


def trainings_of(facts: Facts) -> tuple[Training, ...]:
    """Return all trainings that have time in the window, in order of their first attempts."""
    attempts: dict[TrainingKey, list[SupervisedAttempt]] = defaultdict(list)
    stops: dict[TrainingKey, list[ClosedIncident]] = defaultdict(list)
    for attempt in facts.attempts:
        attempts[key_of(attempt)].append(attempt)
    for incident in facts.incidents:
        if was_stopped(incident):
            stops[key_of(incident)].append(incident)
    found = []
    for key, rows in attempts.items():
        rows.sort(key=lambda row: (row.times.start_at_s, row.times.restart))
        spans = divided([row.times for row in rows], _stops(stops.get(key, ())), facts.read_at_s)
        spans = within(spans, facts.from_s, facts.to_s)
        if spans:
            found.append(_training(key, rows, spans))
    return tuple(sorted(found, key=lambda training: (training.spans[0].begin_at_s, training.key.lineage)))


def _stops(incidents: Sequence[ClosedIncident]) -> list[Stop]:
    return [
        Stop(incident.times, incident.opened_at_s, left_alone=incident.outcome in LEFT_ALONE)
        for incident in sorted(incidents, key=lambda row: row.opened_at_s)
    ]


def _training(key: TrainingKey, rows: Sequence[SupervisedAttempt], spans: tuple[Span, ...]) -> Training:
    sizes: list[TrainingSize] = []
    ended_at_s = -math.inf
    for row in rows:
        if not sizes or (sizes[-1].nodes, sizes[-1].gpus) != (row.times.nodes, row.times.gpus):
            # Not before the attempt before it has ended: a second would count with both sizes.
            at_s = min(max(row.times.eligible_at_s, ended_at_s), row.times.start_at_s)
            at_s = max(at_s, sizes[-1].at_s) if sizes else row.times.eligible_at_s
            sizes.append(TrainingSize(at_s, row.times.nodes, row.times.gpus))
        ended_at_s = row.times.end_at_s if row.times.end_at_s is not None else -math.inf
    last = rows[-1]
    running = last.times.end_at_s is None
    return Training(key, last.name, last.times.job, len(rows), running, tuple(sizes), spans)


def unit_of(trainings: Sequence[Training]) -> str:
    """Return GPUs if trainings with GPUs had most of the nodes' time, else nodes for all: two units cannot be added.

    Among GPUs, a training without any, or with an unknown number, weighs nothing.
    """
    with_gpus_s = without_s = 0.0
    for training in trainings:
        for (span, nodes), (_, gpus) in zip(training.weighed(NODE), training.weighed(GPU), strict=True):
            seconds = (span.end_at_s - span.begin_at_s) * nodes
            with_gpus_s, without_s = with_gpus_s + seconds * bool(gpus), without_s + seconds * (not gpus)
    return GPU if with_gpus_s > without_s else NODE
