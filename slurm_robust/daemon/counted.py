"""Keeps sums that only grow, as Prometheus wants them: counters and histograms by name and labels. Values alone.

Rows of the journal are deleted after `daemon.retention_days`, so the sums are kept on their own, as one JSON text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import msgspec

from slurm_robust.policy.cluster.recovery_plan import CLAIM, NODE_FAULT, NODE_LOST, OWNER, REPORT

BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
FOLLOWED = (CLAIM, NODE_LOST, NODE_FAULT)
KINDS = (*FOLLOWED, OWNER, REPORT)
ANNOUNCED = ("nodes.storm", "nodes.fault_storm", "breaker.open", "daemon.error", "slurm.away", "node.drained")
"""Events that are shown as 0 before the first of them: an increase from nothing cannot be seen."""
SEPARATOR = "|"


class TimeCounts(msgspec.Struct):
    """A histogram: how many times lie in each bucket alone, the last of which has no end, and their sum."""

    counts: list[int]
    sum_s: float = 0.0
    bounds_s: tuple[float, ...] = BUCKETS_S

    def add(self, seconds: float) -> None:
        """Count one event that took this long."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds


class Counted(msgspec.Struct):
    """The sums, and how far the journal was counted."""

    since_s: float = 0.0
    counters: dict[str, float] = {}
    times: dict[str, TimeCounts] = {}
    events_row: int = 0
    drains_row: int = 0
    out: dict[int, tuple[str, float]] = {}
    """Drains that have not ended, by row: the node, and since when."""
    gpus: dict[str, int] = {}
    """GPUs of the jobs whose incidents are open, by key: afterwards Slurm may not know the job any more."""

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        key = SEPARATOR.join((name, *labels))
        self.counters[key] = self.counters.get(key, 0) + by

    def time(self, name: str, *labels: str, seconds: float) -> None:
        """Add to a histogram."""
        key = SEPARATOR.join((name, *labels))
        found = self.times.get(key)
        if found is None or found.bounds_s != BUCKETS_S:  # an older version had other buckets
            found = self.times[key] = TimeCounts([0] * (len(BUCKETS_S) + 1))
        found.add(seconds)


def from_nothing() -> Mapping[str, float]:
    """Counters that are shown before the first of their kind."""
    labelled = {
        "incidents_opened": KINDS,
        "events": ANNOUNCED,
        "claims": ("accepted", "refused"),
        "standby_replacements": ("hit", "miss"),
    }
    keys = [SEPARATOR.join((name, label)) for name, labels in labelled.items() for label in labels]
    ends = [("report", "stop", "stopped")]
    ends += [(kind, "seat", outcome) for kind in FOLLOWED for outcome in ("resumed", "not_started", "aborted")]
    keys += [SEPARATOR.join(("incidents", *end)) for end in ends]
    return dict.fromkeys((*keys, "drains", "drains_ended", "drains_reverted"), 0)
