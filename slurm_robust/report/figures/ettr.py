"""Computes the effective training time ratio, in total and in a sliding hour, and the use of the rest.

ETTR = productive seconds / all seconds from the first attempt's eligibility to the end or now, as ByteRobust publishes
it, weighed by GPUs over the cluster. Queueing counts as time, as in Meta's definition of the same ratio. Time that was
not watched counts as not productive; `at_most` is the ratio if all such time had been productive. A training that was
not watched at all has no ETTR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_robust.core.spent_time import Spent, spent
from slurm_robust.report.figures.trainings import Training, unit_of

HOUR_S = 3600.0
MAX_POINTS = 500
_NOTHING_S = 1e-3
LOST = (*(Spent.DETECTION, Spent.DIAGNOSIS, Spent.RESTART, Spent.RECOMPUTATION),)
"""The categories of time that failures cost."""


@dataclass(frozen=True)
class TimeShares:
    """The time of one or more trainings by category.

    Attributes:
        seconds: Seconds by category: GPU seconds, node seconds or plain seconds.
        unit: `gpu`, `node`, or empty for plain seconds of one training.
    """

    seconds: Mapping[Spent, float]
    unit: str = ""

    @property
    def total_s(self) -> float:
        """Return the sum over all categories, seconds."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> Mapping[Spent, float] | None:
        """The share of each category; the shares sum to 1. None if there was no time."""
        total = self.total_s
        return {what: seconds / total for what, seconds in self.seconds.items()} if total > 0 else None

    @property
    def ettr(self) -> float | None:
        """Productive of all; None if nothing was watched."""
        total = self.total_s
        watched = total - self.seconds.get(Spent.UNKNOWN, 0.0)
        return self.seconds.get(Spent.PRODUCTIVE, 0.0) / total if watched > _NOTHING_S else None

    @property
    def at_most(self) -> float | None:
        """The ETTR if all time that was not watched had been productive."""
        unknown_s = self.seconds.get(Spent.UNKNOWN, 0.0)
        return None if self.ettr is None else (self.seconds.get(Spent.PRODUCTIVE, 0.0) + unknown_s) / self.total_s


@dataclass(frozen=True)
class EttrPoint:
    """ETTR at one time; None if there was no time to divide.

    Attributes:
        cumulative: The ETTR from the begin of the window.
        sliding: The ETTR of the hour (or other width) before.
        shares: The use of that hour; empty if it had no time.
    """

    at_s: float
    cumulative: float | None
    sliding: float | None
    shares: Mapping[Spent, float]


def time_of(training: Training) -> TimeShares:
    """Return the time of one training by category, in its own seconds."""
    return TimeShares(spent(training.spans))


def time_of_all(trainings: Sequence[Training]) -> TimeShares:
    """Return the time of all trainings by category, weighed by GPUs, or by nodes if the GPUs are not known."""
    unit = unit_of(trainings)
    total = dict.fromkeys(Spent, 0.0)
    for training in trainings:
        for span, weight in training.weighed(unit):
            for what, seconds in span.shares.items():
                total[what] += seconds * weight
    return TimeShares(total, unit)


def ettr_series(
    trainings: Sequence[Training], from_s: float, to_s: float, *, width_s: float = HOUR_S, points: int = MAX_POINTS
) -> tuple[EttrPoint, ...]:
    """ETTR over time, for plots: `points` times at equal distances, the last one at `to_s`.

    One training gives its own series, several the cluster's, weighed as in `time_of_all`. Within a span, time is taken
    as going evenly into its categories.
    """
    if to_s <= from_s or not trainings or points < 1:
        return ()
    grid = np.linspace(from_s, to_s, points + 1)[1:]
    edges, sums = _running_sums(trainings)
    begin = _at(edges, sums, np.array([from_s]))
    now = _at(edges, sums, grid)
    before = _at(edges, sums, np.maximum(grid - width_s, from_s))
    found = []
    for number, at_s in enumerate(grid):
        cumulative, _ = _ratio(now[:, number] - begin[:, 0])
        found.append(EttrPoint(float(at_s), cumulative, *_ratio(now[:, number] - before[:, number])))
    return tuple(found)


def _running_sums(trainings: Sequence[Training]) -> tuple[np.ndarray, np.ndarray]:
    """Times at which a rate changes, and what each category had taken until then."""
    unit, places = unit_of(trainings), {what: number for number, what in enumerate(Spent)}
    times, whats, rates = list[float](), list[int](), list[float]()
    for training in trainings:
        for span, weight in training.weighed(unit):
            width_s = span.end_at_s - span.begin_at_s
            for what, seconds in span.shares.items():
                if seconds and width_s > 0:
                    times += (span.begin_at_s, span.end_at_s)
                    whats += (places[what], places[what])
                    rates += (seconds * weight / width_s, -seconds * weight / width_s)
    edges, index = np.unique(np.array(times or [0.0]), return_inverse=True)
    changes = np.zeros((len(places), len(edges)))
    if times:
        np.add.at(changes, (np.array(whats), index), np.array(rates))
    held = np.cumsum(changes, axis=1)[:, :-1] * np.diff(edges)
    return edges, np.concatenate([np.zeros((len(places), 1)), np.cumsum(held, axis=1)], axis=1)


def _at(edges: np.ndarray, sums: np.ndarray, times: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(times, edges, row) for row in sums])


def _ratio(seconds: np.ndarray) -> tuple[float | None, Mapping[Spent, float]]:
    shares = TimeShares({what: max(0.0, float(s)) for what, s in zip(Spent, seconds, strict=True)})
    return (shares.ettr, shares.shares or {}) if shares.total_s > _NOTHING_S else (None, {})
