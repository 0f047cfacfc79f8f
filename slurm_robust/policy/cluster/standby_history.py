"""Computes how many standby nodes a class of nodes needs, by its own past, and how fast a pool may follow. Pure.

Failures are drains of ours that were not taken back within the hour, and nodes that were lost under a job. What happens
to a node within an hour is one failure. Three or more nodes that fail within a minute of each other have one cause (a
switch, a power supply); they count as one failure, because the binomial is of nodes that fail by themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from slurm_robust.policy.cluster.failure_rate import FailureRate, daily_probability, failure_rate
from slurm_robust.policy.cluster.standby_size import standby_size

SAME_FAILURE_S = 3600.0
TOGETHER_S, TOGETHER_NODES = 60.0, 3
DAY_S = 86400.0


@dataclass(frozen=True)
class SizeSuggestion:
    """The pool size that the past of a class suggests.

    Attributes:
        machines: How many nodes the class has.
        rate: Failures over node-days.
        size: The smallest size that is enough on `quantile` of all days at this rate; None without node-days.
        low: The size at the lower end of the rate's interval.
        high: The size at the upper end of the rate's interval.
    """

    machines: int
    rate: FailureRate
    quantile: float
    size: int | None
    low: int | None
    high: int | None

    @property
    def sentence(self) -> str:
        """A sentence that tells what was counted, and which size follows."""
        rate = self.rate
        if self.size is None or rate.rate is None or rate.low is None or rate.high is None:
            return "no node-day was seen yet"
        failures = f"{rate.failures} failure{'' if rate.failures == 1 else 's'}"
        seen = f"{rate.exposure:.0f}" if rate.exposure >= 10 else f"{rate.exposure:.2g}"
        early = "; less than a day of these nodes was seen, which is no evidence yet"
        return (
            f"{failures} in {seen} node-days ({figure(rate.rate)} a node-day, 95 %: {figure(rate.low)} to "
            f"{figure(rate.high)}): on {self.quantile:.3g} of all days at most {self.size} of {self.machines} nodes "
            f"fail (95 %: {self.low} to {self.high}){early if rate.exposure < self.machines else ''}"
        )


def figure(value: float) -> str:
    """Return the number with two digits, and large numbers without powers of ten."""
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"


@dataclass(frozen=True)
class AutoLimits:
    """Bounds of `standby.size: auto`."""

    start: int
    most: int
    min_node_days: float


@dataclass(frozen=True)
class AutoSize:
    """The size that a pool has now.

    Attributes:
        changed_at_s: When the size changed last, or was first set.
        reason: Why the pool has this size.
    """

    size: int
    changed_at_s: float
    reason: str


def independent_failures(failures: Iterable[tuple[str, float]]) -> int:
    """Return how many failures these pairs (node, time) are, by the rules above."""
    last: dict[str, float] = {}
    begun: list[tuple[float, str]] = []
    for at_s, node in sorted((at_s, node) for node, at_s in failures):
        if node not in last or at_s - last[node] > SAME_FAILURE_S:
            begun.append((at_s, node))
        last[node] = at_s
    total, group = 0, list[tuple[float, str]]()
    for row in begun:
        if group and row[0] - group[-1][0] > TOGETHER_S:
            total += _count(group)
            group = []
        group.append(row)
    return total + _count(group)


def _count(group: list[tuple[float, str]]) -> int:
    return 1 if len({node for _, node in group}) >= TOGETHER_NODES else len(group)


def suggested(machines: int, failures: int, node_days: float, quantile: float = 0.99) -> SizeSuggestion:
    """Return the size for so many machines, after so many failures in these node-days."""
    rate = failure_rate(failures, node_days)

    def size(failures_per_day: float | None) -> int | None:
        if failures_per_day is None:
            return None
        return standby_size(machines, daily_probability(failures_per_day), quantile)

    return SizeSuggestion(machines, rate, quantile, size(rate.rate), size(rate.low), size(rate.high))


def past_by_class(
    classes: Mapping[str, Collection[str]], failures: Collection[tuple[str, float]], days: float, quantile: float = 0.99
) -> dict[str, SizeSuggestion]:
    """Return the size that the failures (node, time) of so many days suggest for each class (its nodes by name)."""
    found = {}
    for name, members in classes.items():
        names = set(members)
        count = independent_failures((node, at_s) for node, at_s in failures if node in names)
        found[name] = suggested(len(names), count, len(names) * max(0.0, days), quantile)
    return found


def next_size(present: AutoSize | None, past: SizeSuggestion, limits: AutoLimits, now_s: float) -> AutoSize:
    """Return the pool's size from now on: it moves by one towards the suggestion, at most once a day.

    The size is never below 1 nor above `limits.most`. Without enough evidence it does not change; the first size is
    `limits.start`.
    """
    least, most = 1, max(1, limits.most)
    present = present or AutoSize(_clamped(limits.start, least, most), now_s, "")
    size = _clamped(present.size, least, most)
    if past.size is None or past.rate.exposure < limits.min_node_days:
        seen = f"{past.rate.exposure:.0f} of {limits.min_node_days:.0f} node-days"
        return AutoSize(size, present.changed_at_s, f"too little evidence yet ({seen}): it stays {size}")
    wanted = _clamped(past.size, least, most)
    bounds = f", bounded to {wanted}" if wanted != past.size else ""
    if wanted == size:
        return AutoSize(size, present.changed_at_s, past.sentence + bounds)
    if 0 <= now_s - present.changed_at_s < DAY_S:
        return AutoSize(size, present.changed_at_s, f"{past.sentence}{bounds}; it changes by one a day, now {size}")
    size += 1 if wanted > size else -1
    on_the_way = f"; on its way to {wanted}, by one a day" if size != wanted else ""
    return AutoSize(size, now_s, past.sentence + bounds + on_the_way)


def _clamped(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)
