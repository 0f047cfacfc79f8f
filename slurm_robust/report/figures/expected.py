"""Which ETTR does a formula predict from the rates that were measured, and is the measured one near it?

Meta's formula (its RSC clusters): E[ETTR] ≈ (1 − N·r_f·(u0 + Δ/2)) / (1 + w/Δ), and the best interval between
checkpoints √(2w/(N·r_f)). N: nodes of the training. r_f: failures per node-day, of all supervised jobs. u0: detection,
diagnosis and restart per failure. Δ: time between two checkpoints; if not given, twice the recomputation per failure,
since a failure comes in the middle of an interval on average. w: stall of one checkpoint; if not given, Δ times the
share of stepping time that stood still for checkpoints. The formula does not know queueing, slow steps and time that
was not watched, so the measured ratio is also given without them (`alike`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_robust.core.spent_time import Spent
from slurm_robust.policy.cluster.failure_rate import FailureRate
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.ettr import TimeShares, time_of
from slurm_robust.report.figures.reliability import reliability
from slurm_robust.report.figures.trainings import Training

DAY_S = 86400.0
_OUT_OF_SERVICE = (Spent.DETECTION, Spent.DIAGNOSIS, Spent.RESTART)
_IN_FORMULA = (*_OUT_OF_SERVICE, Spent.PRODUCTIVE, Spent.RECOMPUTATION, Spent.CHECKPOINT)


@dataclass(frozen=True)
class FormulaSymbols:
    """What was measured (or given) for each symbol; None if it is not known.

    Attributes:
        failures: r_f, over node-days.
        restart_s: u0.
        interval_s: Δ.
        stall_share: w/Δ.
    """

    failures: FailureRate
    restart_s: float | None
    interval_s: float | None
    stall_share: float | None

    @property
    def stall_s(self) -> float | None:
        """The stall of one checkpoint, w."""
        return None if self.interval_s is None or self.stall_share is None else self.interval_s * self.stall_share


@dataclass(frozen=True)
class ExpectedEttr:
    """The prediction for a training of so many nodes.

    Attributes:
        expected: None if it cannot be said; `why` says why then.
        low: At the upper end of the failure rate's interval.
        high: At its lower end.
        best_interval_s: Between two checkpoints; None if it cannot be said.
    """

    nodes: int
    expected: float | None
    low: float | None
    high: float | None
    best_interval_s: float | None
    why: str


@dataclass(frozen=True)
class ExpectedRow:
    """One training: predicted and measured.

    Attributes:
        alike: Measured without queueing, the first start, slow steps and unknown time, as the formula has it.
    """

    training: Training
    prediction: ExpectedEttr
    measured: float | None
    alike: float | None


def symbols_of(
    facts: Facts, trainings: Sequence[Training], *, interval_s: float | None = None, stall_s: float | None = None
) -> FormulaSymbols:
    """Return the symbols, measured over all trainings of the window; a site may give `interval_s` and `stall_s`."""
    total = reliability(facts).total
    failures, seconds = total.by_node_days.failures, dict.fromkeys(Spent, 0.0)
    for training in trainings:
        for what, spent_s in time_of(training).seconds.items():
            seconds[what] += spent_s
    restart_s = sum(seconds[what] for what in _OUT_OF_SERVICE) / failures if failures and trainings else None
    if interval_s is None and failures and seconds[Spent.RECOMPUTATION] > 0:
        interval_s = 2 * seconds[Spent.RECOMPUTATION] / failures
    if stall_s is not None and interval_s:
        stall_share: float | None = stall_s / interval_s
    else:
        stall_share = seconds[Spent.CHECKPOINT] / seconds[Spent.PRODUCTIVE] if seconds[Spent.PRODUCTIVE] > 0 else None
    return FormulaSymbols(total.by_node_days, restart_s, interval_s, stall_share)


def predict(nodes: int, symbols: FormulaSymbols) -> ExpectedEttr:
    """Return the formula's prediction for a training of so many nodes."""
    rate = symbols.failures.rate
    missing = _missing(symbols)
    if missing or rate is None or symbols.stall_share is None:
        return ExpectedEttr(nodes, None, None, None, None, f"It cannot be said: {missing}.")
    lost_days = ((symbols.restart_s or 0.0) + (symbols.interval_s or 0.0) / 2) / DAY_S

    def at(failures_per_day: float | None) -> float | None:
        if failures_per_day is None or (failures_per_day and not lost_days):
            return None
        left = 1 - nodes * failures_per_day * lost_days
        return left / (1 + (symbols.stall_share or 0.0)) if left > 0 else None

    expected = at(rate)
    why = ""
    if expected is None:
        why = "It cannot be said: at this rate, failures would take all of the time."
    elif not rate:
        why = "No failure was seen: this is what checkpoints alone leave."
    best_s = None
    if rate and nodes and symbols.stall_s:
        best_s = math.sqrt(2 * symbols.stall_s / (nodes * rate / DAY_S))
    return ExpectedEttr(nodes, expected, at(symbols.failures.high), at(symbols.failures.low), best_s, why)


def _missing(symbols: FormulaSymbols) -> str:
    """Return why the formula cannot be used; empty if all symbols that matter are known."""
    if symbols.failures.rate is None:
        return "no supervised job ran, so there is no failure rate"
    if symbols.stall_share is None:
        return "no training reported steps, so the share of checkpoints is not known"
    if symbols.failures.failures and symbols.restart_s is None:
        return "the time of a restart is not known"
    if symbols.failures.failures and symbols.interval_s is None:
        return "no steps were made twice, so the time between checkpoints is not known"
    return ""


def expected_ettr(facts: Facts, trainings: Sequence[Training]) -> tuple[ExpectedRow, ...]:
    """Return the formula's prediction for every training, beside the measured ratio."""
    symbols = symbols_of(facts, trainings)
    return tuple(
        ExpectedRow(training, predict(training.nodes, symbols), (time := time_of(training)).ettr, _alike(time))
        for training in trainings
    )


def _alike(time: TimeShares) -> float | None:
    total = sum(time.seconds[what] for what in _IN_FORMULA)
    return time.seconds[Spent.PRODUCTIVE] / total if total > 0 else None
