"""How much of the cluster was in use, over time and over the hours of the day?

GPUs in use = GPUs of all runs between their start and end (nodes if no run has GPUs). Utilisation = GPUs in use / the
cluster's capacity at the time; None if the capacity is not known. Left out: how much jobs used their GPUs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_robust.daemon.store.attempt_ledger import ClusterSize

HOUR_S, DAY_S = 3600.0, 86400.0
HOURS = 24


@dataclass(frozen=True)
class UsagePoint:
    """The mean over one stretch of time.

    Attributes:
        in_use: GPUs (or nodes).
        capacity: That the cluster had at its begin; None if unknown.
    """

    begin_at_s: float
    end_at_s: float
    in_use: float
    capacity: int | None

    @property
    def share(self) -> float | None:
        """The share of the capacity that is in use."""
        return self.in_use / self.capacity if self.capacity else None


@dataclass(frozen=True)
class HourOfDay:
    """One hour of the day, over all days of the window.

    Attributes:
        hour: 0 to 23, in the given offset from UTC.
        in_use: Mean GPUs (or nodes) in use; None if the window has no such hour.
    """

    hour: int
    submitted: int
    started: int
    in_use: float | None


class UsageSums:
    """Rows are added one by one: 24 bytes for each run, and two counters for each hour of the day."""

    def __init__(self, offset_s: float = 0.0) -> None:
        self.offset_s = offset_s
        self._begins, self._ends, self._gpus, self._nodes = (array("d") for _ in range(4))
        self._submitted, self._started = [0] * HOURS, [0] * HOURS

    def add(self, begin_s: float, end_s: float, gpus: int, nodes: int) -> None:
        """Add a run, clipped to the window."""
        if end_s > begin_s:
            self._begins.append(begin_s)
            self._ends.append(end_s)
            self._gpus.append(gpus)
            self._nodes.append(nodes)

    def submitted(self, at_s: float) -> None:
        """Count a submission."""
        self._submitted[self._hour(at_s)] += 1

    def started(self, at_s: float) -> None:
        """Count a start."""
        self._started[self._hour(at_s)] += 1

    @property
    def unit(self) -> str:
        """`gpu`, or `node` if no run has GPUs."""
        return "gpu" if any(self._gpus) or not self._nodes else "node"

    def points(
        self, from_s: float, to_s: float, sizes: Sequence[ClusterSize], count: int = 240
    ) -> tuple[UsagePoint, ...]:
        """Return the window in `count` equal stretches."""
        if to_s <= from_s:
            return ()
        grid = np.linspace(from_s, to_s, count + 1)
        means = np.diff(self._sums(grid)) / np.diff(grid)
        return tuple(
            UsagePoint(float(a), float(b), float(max(0.0, mean)), capacity_at(sizes, float(a), self.unit))
            for a, b, mean in zip(grid[:-1], grid[1:], means, strict=True)
        )

    def hours(self, from_s: float, to_s: float) -> tuple[HourOfDay, ...]:
        """Return the day, hour by hour."""
        used, time_s = np.zeros(HOURS), np.zeros(HOURS)
        if to_s > from_s:
            first = (from_s + self.offset_s) // HOUR_S * HOUR_S - self.offset_s
            edges = np.append(np.arange(first, to_s, HOUR_S), to_s)
            edges[0] = from_s
            which = ((edges[:-1] + self.offset_s) // HOUR_S % HOURS).astype(int)
            np.add.at(used, which, np.diff(self._sums(edges)))
            np.add.at(time_s, which, np.diff(edges))
        return tuple(
            HourOfDay(
                *(hour, self._submitted[hour], self._started[hour]),
                max(0.0, float(used[hour] / time_s[hour])) if time_s[hour] else None,
            )
            for hour in range(HOURS)
        )

    def _hour(self, at_s: float) -> int:
        return int((at_s + self.offset_s) // HOUR_S % HOURS)

    def _sums(self, times: np.ndarray) -> np.ndarray:
        """GPU seconds used until each of these times."""
        weight = np.frombuffer(self._gpus if self.unit == "gpu" else self._nodes) if self._begins else np.zeros(0)
        total = np.zeros(len(times))
        for edges, sign in ((self._begins, 1.0), (self._ends, -1.0)):
            if not edges:
                continue
            at_s = np.frombuffer(edges)
            order = np.argsort(at_s)
            # Used since each start, less used since each end: sums of weight × (time − edge) over edges before a time.
            held = np.concatenate([[0.0], np.cumsum(weight[order])])
            moment = np.concatenate([[0.0], np.cumsum(weight[order] * (at_s[order] - times[0]))])
            before = np.searchsorted(at_s[order], times, side="right")
            total += sign * (held[before] * (times - times[0]) - moment[before])
        return total


def capacity_at(sizes: Sequence[ClusterSize], at_s: float, unit: str) -> int | None:
    """GPUs or nodes that the cluster had then; None if it is not known."""
    newest: dict[str, ClusterSize] = {}
    for size in sizes:
        if size.at_s <= at_s and (size.gres not in newest or size.at_s >= newest[size.gres].at_s):
            newest[size.gres] = size
    return sum(size.nodes * (size.gpus if unit == "gpu" else 1) for size in newest.values()) or None
