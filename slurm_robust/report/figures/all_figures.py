"""Computes every figure of a window once, for pages, Markdown and JSON."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.ettr import EttrPoint, TimeShares, ettr_series, time_of, time_of_all
from slurm_robust.report.figures.expected import ExpectedRow, FormulaSymbols, expected_ettr, symbols_of
from slurm_robust.report.figures.failure_costs import FailureCosts, failure_costs
from slurm_robust.report.figures.false_alarms import FalseAlarms, false_alarms
from slurm_robust.report.figures.goodput import Goodput, goodput
from slurm_robust.report.figures.node_events import NodeHistory, node_histories
from slurm_robust.report.figures.reliability import Reliability, reliability
from slurm_robust.report.figures.restarts import RestartRow, restarts_by_road
from slurm_robust.report.figures.standby_use import StandbyUse, standby_use
from slurm_robust.report.figures.trainings import Training, TrainingKey, trainings_of


@dataclass(frozen=True)
class Figures:
    """All figures of a report.

    Attributes:
        time: The time of all trainings, weighed.
        time_by_training: The time of each training, in its own seconds.
        series: The cluster's ETTR over time.
        symbols: The measured values for the formula of `expected`.
        sentences: Sentences about figures that cannot be computed, and why.
    """

    trainings: tuple[Training, ...]
    time: TimeShares
    time_by_training: dict[TrainingKey, TimeShares]
    series: tuple[EttrPoint, ...]
    goodput: Goodput
    costs: FailureCosts
    reliability: Reliability
    restarts: tuple[RestartRow, ...]
    false_alarms: FalseAlarms
    nodes: tuple[NodeHistory, ...]
    standby: StandbyUse
    expected: tuple[ExpectedRow, ...]
    symbols: FormulaSymbols
    sentences: tuple[str, ...]


def figures_of(facts: Facts) -> Figures:
    """Compute every figure."""
    trainings = trainings_of(facts)
    return Figures(
        trainings=trainings,
        time=time_of_all(trainings),
        time_by_training={training.key: time_of(training) for training in trainings},
        series=ettr_series(trainings, facts.from_s, min(facts.to_s, facts.read_at_s)),
        goodput=goodput(facts, trainings),
        costs=failure_costs(facts, trainings),
        reliability=reliability(facts),
        restarts=restarts_by_road(facts),
        false_alarms=false_alarms(facts),
        nodes=node_histories(facts),
        standby=standby_use(facts),
        expected=expected_ettr(facts, trainings),
        symbols=symbols_of(facts, trainings),
        sentences=_sentences(facts, trainings),
    )


def _sentences(facts: Facts, trainings: tuple[Training, ...]) -> tuple[str, ...]:
    out = []
    if not trainings:
        out.append("No supervised training ran in this time, so there is no ETTR.")
    elif time_of_all(trainings).ettr is None:
        out.append("No training reported its steps, so there is no ETTR: call progress.step in the training loop.")
    if facts.attempts and not facts.incidents:
        out.append("No incident happened: times between failures are only known to be longer than a bound.")
    if not facts.sizes:
        out.append("The size of the cluster is not known for this time, so there is no goodput of its capacity.")
    if not facts.pools:
        out.append("No standby pool was there, so nothing can be said of standby nodes.")
    if not facts.jobs:
        out.append("Slurm's accounting was not read: figures of jobs without a supervisor are missing.")
    return tuple(out)
