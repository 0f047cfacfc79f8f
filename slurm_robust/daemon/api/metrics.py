"""Writes the snapshot in Prometheus' text format: it has each number's meaning, and its place in the snapshot. Pure.

Labels are states, outcomes, roads and stages, chosen by this program. The names of jobs and users become labels only if
the site says so (`daemon.http.job_labels`), and of a bounded number of jobs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from slurm_robust.core.model import TIME_KEYS
from slurm_robust.daemon.counted import SEPARATOR, from_nothing
from slurm_robust.policy.cluster.node_states import NodeState

MAX_JOBS = 500
"""Jobs that have labels of their own, at most."""
MAX_LABEL_CHARS = 64


class Described(NamedTuple):
    """The description of a metric: its kind, its labels, and its meaning."""

    kind: str
    labels: tuple[str, ...]
    meaning: str


def _gauge(meaning: str, *labels: str) -> Described:
    return Described("gauge", labels, meaning)


def _counter(meaning: str, *labels: str) -> Described:
    return Described("counter", labels, meaning)


def _histogram(meaning: str, *labels: str) -> Described:
    return Described("histogram", labels, meaning)


METRICS: dict[str, Described] = {
    "info": _gauge("Always 1; which daemon this is", "version", "cluster", "mode"),
    "snapshot_age_seconds": _gauge("Age of the snapshot; large where the daemon is gone"),
    "snapshot_timestamp_seconds": _gauge("When the snapshot was taken, seconds since the epoch"),
    "acting": _gauge("1 where plans are carried out, 0 in observe mode"),
    "standing_by": _gauge("1 where this daemon does nothing, since another one of the cluster acts"),
    "clock_ahead_seconds": _gauge("How far the clock of the daemon's host is ahead of slurmctld's; 0 below 5 s"),
    "breaker_open": _gauge("1 where nothing is drained until a person resets the breaker"),
    "troubles": _gauge("What keeps the daemon from its work now: a full disk, a Slurm that does not answer"),
    "slurm_calls_total": _counter("Calls to Slurm since the daemon started"),
    "supervised_jobs": _gauge("Running jobs that supervise themselves"),
    "waiting_jobs": _gauge("Supervised jobs that wait in the queue after a requeue"),
    "ettr_ratio": _gauge(
        "Effective training time ratio of the running jobs, weighted by their nodes: since their beginning (`run`), or "
        "in the last hour (`hour`); absent where no job tells it",
        "window",
    ),
    "ettr_lowest_ratio": _gauge("The lowest of them", "window"),
    "job_ettr_ratio": _gauge(
        "The same of each job, where `daemon.http.job_labels` is on (`job` is Prometheus' own label)",
        "slurm_job",
        "user",
        "window",
    ),
    "nodes": _gauge("Nodes in each state; `room` is the old name of the label `state`", "state", "room"),
    "blind_nodes": _gauge("Nodes whose checks do not see the GPUs, as where NVIDIA's binding is missing"),
    "full_nodes": _gauge("Nodes that say that a file system that jobs need is full"),
    "standby_nodes": _gauge("Members that the pool has", "pool"),
    "standby_wanted_nodes": _gauge("Members that the pool should have", "pool"),
    "standby_missing": _gauge("Members that the pool lacks", "pool"),
    "standby_unchecked_nodes": _gauge("Members whose full check is missing or too old", "pool"),
    "standby_replacements_total": _counter(
        "Evicted nodes that a standby or free node replaced at once (`hit`), or none did (`miss`)", "result"
    ),
    "incidents_open": _gauge(
        "Incidents that are not closed: `open`, or `running` until the first step after it", "state"
    ),
    "incidents_opened_total": _counter("Incidents that began", "kind"),
    "incidents_total": _counter("Incidents that were closed", "kind", "road", "outcome"),
    "claims_total": _counter("Jobs that asked the daemon for a requeue, by its answer", "answer"),
    "stage_seconds": _histogram(
        "Seconds of each stage of closed incidents: up to this stamp, from the latest known one before it",
        "stage",
        "road",
    ),
    "recovery_seconds": _histogram("Seconds from the fault to the first step after it, of resumed incidents", "road"),
    "gpu_seconds_lost_total": _counter("The same times, multiplied by the GPUs of the job's nodes", "road"),
    "drains_total": _counter("Nodes that were taken out of service with a reason of ours"),
    "drains_ended_total": _counter("Those of them that are back in service"),
    "drains_reverted_total": _counter(
        "Those of them that were for nothing: a check passed with nothing repaired, or a person soon took them back"
    ),
    "checks_total": _counter(
        "Checks that the daemon had made: `standby`, `recheck` (of a suspect), `pair` (two nodes together)",
        "check",
        "result",
    ),
    "events_total": _counter("Lines of the daemon's audit log, by their first word", "event"),
    "notifications_total": _counter(
        "Messages of `notify:`, by what came of them: `sent`, `failed` (tried again), `given_up`", "target", "result"
    ),
    "notifications_waiting": _gauge("What the target is still to be told of", "target"),
    "slurm_calls": _gauge("Deprecated, gone in the next version: `srobust_slurm_calls_total`"),
    "recent_incidents": _gauge("Deprecated, gone in the next version: `srobust_incidents_total`", "outcome"),
    "last_recovery_seconds": _gauge("Deprecated, gone in the next version: `srobust_stage_seconds`", "stage"),
}
"""Name of each metric, without `srobust_` → its description."""

Samples = Iterator[tuple[tuple[str, ...], float]]
"""The values of the labels, and the number."""


def metrics(value: Mapping[str, Any], now_s: float) -> bytes:
    """Return the snapshot in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(value, now_s))
    return generate_latest(registry)


class _Snapshot(Collector):
    """All families of one snapshot."""

    def __init__(self, value: Mapping[str, Any], now_s: float) -> None:
        self.value, self.now_s = value, now_s
        totals = value.get("totals") or {}
        self.counters: dict[str, float] = {**from_nothing(), **totals.get("counters", {})}
        self.times: Mapping[str, Any] = totals.get("times", {})

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a test checks the names, not each request."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield each family, including families without samples."""
        for name, described in METRICS.items():
            full, meaning = f"srobust_{name}", described.meaning.replace("`", "")
            if described.kind == "histogram":
                yield self._histogram(full, name.removesuffix("_seconds"), meaning, described.labels)
                continue
            make = GaugeMetricFamily if described.kind == "gauge" else CounterMetricFamily
            family = make(full, meaning, labels=described.labels)
            for labels, number in self._samples(name):
                family.add_metric(labels, number)
            yield family

    def _samples(self, name: str) -> Samples:
        special = getattr(self, f"_of_{name}", None)
        if special is not None:
            yield from special()
        elif METRICS[name].kind == "counter":
            key = name.removesuffix("_total")
            for found, number in sorted(self.counters.items()):
                first, *labels = found.split(SEPARATOR)
                if first == key and len(labels) == len(METRICS[name].labels):
                    yield tuple(labels), number

    def _histogram(self, full: str, key: str, meaning: str, labels: tuple[str, ...]) -> HistogramMetricFamily:
        family = HistogramMetricFamily(full, meaning, labels=labels)
        for found, times in sorted(self.times.items()):
            first, *values = found.split(SEPARATOR)
            if first != key or len(values) != len(labels):
                continue
            buckets, count = list[tuple[str, float]](), 0
            for bound, number in zip((*times["bounds_s"], None), times["counts"], strict=False):
                count += number
                buckets.append(("+Inf" if bound is None else str(float(bound)), count))
            family.add_metric(values, buckets, sum_value=times["sum_s"])
        return family

    # --- one for each name that is no plain counter

    def _of_info(self) -> Samples:
        shown = (str(self.value.get(key, ""))[:MAX_LABEL_CHARS] for key in ("version", "cluster", "mode"))
        yield tuple(shown), 1

    def _of_snapshot_age_seconds(self) -> Samples:
        yield (), max(0.0, self.now_s - float(self.value.get("at_s", 0.0)))

    def _of_snapshot_timestamp_seconds(self) -> Samples:
        yield (), float(self.value.get("at_s", 0.0))

    def _of_acting(self) -> Samples:
        standing_by = self.value.get("lease", {}).get("standing_by")
        yield (), self.value.get("mode") == "act" and not standing_by

    def _of_standing_by(self) -> Samples:
        yield (), bool(self.value.get("lease", {}).get("standing_by"))

    def _of_clock_ahead_seconds(self) -> Samples:
        yield (), int(self.value.get("clock_ahead_s", 0))

    def _of_breaker_open(self) -> Samples:
        yield (), bool(self.value.get("breaker", {}).get("open"))

    def _of_troubles(self) -> Samples:
        yield (), len(self.value.get("troubles", ()))

    def _of_slurm_calls_total(self) -> Samples:
        yield (), int(self.value.get("slurm_calls", 0))

    _of_slurm_calls = _of_slurm_calls_total

    def _of_supervised_jobs(self) -> Samples:
        yield (), len(self._jobs)

    def _of_waiting_jobs(self) -> Samples:
        yield (), len(self.value.get("waiting", ()))

    @property
    def _jobs(self) -> list[Mapping[str, Any]]:
        return list(self.value.get("jobs", ()))

    def _ratios(self, window: str) -> list[tuple[float, Mapping[str, Any]]]:
        key = {"run": "ettr", "hour": "ettr_hour"}[window]
        return [(job[key], job) for job in self._jobs if isinstance(job.get(key), (int, float))]

    def _of_ettr_ratio(self) -> Samples:
        for window in ("run", "hour"):
            weighted = [(ratio, int(job.get("node_count", 1))) for ratio, job in self._ratios(window)]
            if whole := sum(weight for _, weight in weighted):
                yield (window,), sum(ratio * weight for ratio, weight in weighted) / whole

    def _of_ettr_lowest_ratio(self) -> Samples:
        for window in ("run", "hour"):
            if found := self._ratios(window):
                yield (window,), min(ratio for ratio, _ in found)

    def _of_job_ettr_ratio(self) -> Samples:
        if not self.value.get("job_labels"):
            return
        for window in ("run", "hour"):
            for ratio, job in self._ratios(window)[:MAX_JOBS]:
                labels = (str(job.get("job", "")), str(job.get("user", "")), window)
                yield tuple(label[:MAX_LABEL_CHARS] for label in labels), ratio

    def _of_nodes(self) -> Samples:
        counts = Counter(n.get("node_state", n.get("room")) for n in self.value.get("nodes", ()))
        for state in NodeState:
            yield (state.value, state.value), counts[state.value]

    def _of_blind_nodes(self) -> Samples:
        yield (), sum(int(group.get("count", 0)) for group in self.value.get("blind_nodes", ()))

    def _of_full_nodes(self) -> Samples:
        yield (), sum(int(group.get("count", 0)) for group in self.value.get("full_nodes", ()))

    def _pools(self) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
        for pool in self.value.get("standby", ()):
            yield (str(pool.get("name")),), pool

    def _of_standby_nodes(self) -> Samples:
        yield from ((label, len(pool.get("nodes", ()))) for label, pool in self._pools())

    def _of_standby_wanted_nodes(self) -> Samples:
        yield from ((label, int(pool.get("wanted", 0))) for label, pool in self._pools())

    def _of_standby_missing(self) -> Samples:
        yield from ((label, int(pool.get("short", 0))) for label, pool in self._pools())

    def _of_standby_unchecked_nodes(self) -> Samples:
        yield from ((label, int(pool.get("unchecked_count", 0))) for label, pool in self._pools())

    def _of_incidents_open(self) -> Samples:
        counts = Counter(str(i.get("state")) for i in self.value.get("incidents", ()))
        yield from (((state,), counts[state]) for state in ("open", "running"))

    def _of_notifications_total(self) -> Samples:
        for target in self.value.get("notify", ()):
            for result in ("sent", "failed", "given_up"):
                yield (str(target.get("target")), result), int(target.get(result, 0))

    def _of_notifications_waiting(self) -> Samples:
        for target in self.value.get("notify", ()):
            yield (str(target.get("target")),), int(target.get("waiting", 0))

    def _of_recent_incidents(self) -> Samples:
        counts = Counter(str(i.get("outcome") or i.get("state")) for i in self.value.get("incidents", ()))
        yield from (((outcome,), count) for outcome, count in counts.items())

    def _of_last_recovery_seconds(self) -> Samples:
        back = (
            i.get("times", {}) for i in self.value.get("incidents", ()) if i.get("outcome") in ("running", "resumed")
        )
        times: Mapping[str, float] = next((known for known in back if "accepted" in known), {})
        start_s = times.get("accepted", 0.0)
        for stage in TIME_KEYS:
            if times.get(stage, 0.0) >= start_s > 0:
                yield (stage,), times[stage] - start_s


def table() -> str:
    """Return every metric as a Markdown table, for docs/insight.md."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for name, described in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in described.labels)
        lines.append(f"| `srobust_{name}` | {described.kind} | {labels} | {described.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
