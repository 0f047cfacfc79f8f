"""Reads all facts of a stretch of time: the one entry for commands."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_robust.core.spent_time import CLOCKS_S
from slurm_robust.daemon.store.attempt_ledger import SupervisedAttempt
from slurm_robust.report.facts import ClosedIncident, Facts, RanJob
from slurm_robust.report.sources import accounting, causes, doubts, folders, journal
from slurm_robust.report.sources.accounting import AccountingClient


@dataclass(frozen=True)
class FactSources:
    """The sources of facts; None leaves a source out.

    Attributes:
        state_dir: The daemon's `daemon.state_dir`, with the journal.
        accounting: A client of Slurm.
        cluster: The cluster whose facts are read; empty for all clusters in the sources.
    """

    state_dir: Path | None
    accounting: AccountingClient | None
    cluster: str = ""


def read_facts(sources: FactSources, from_s: float, to_s: float, now_s: float) -> Facts:
    """Everything that is known from `from_s` to `to_s`. A source that is away is a doubt, not an error."""
    facts = Facts(from_s, to_s, now_s)
    compared = False
    if sources.state_dir is not None:
        facts = journal.read(sources.state_dir, from_s, to_s, now_s)
    incidents, unread = folders.with_causes(facts.incidents, time.monotonic)
    incidents = causes.with_drains(incidents, facts.drains)
    facts = replace(facts, incidents=incidents, doubts=(*facts.doubts, *unread))
    if sources.accounting is not None:
        accounted = accounting.read(sources.accounting, from_s, to_s, now_s, time.monotonic)
        facts = replace(facts, jobs=accounted.jobs, doubts=(*facts.doubts, *accounted.doubts))
        compared = accounted.whole
    facts = _of_cluster(facts, sources.cluster)
    incidents = _with_new_steps(facts.incidents, facts.attempts)
    facts = replace(facts, incidents=_with_sizes(incidents, facts.attempts, facts.jobs))
    return replace(facts, doubts=(*facts.doubts, *doubts.of(facts, compared=compared)))


def _of_cluster(facts: Facts, name: str) -> Facts:
    if not name:
        return facts if facts.cluster or not facts.jobs else replace(facts, cluster=facts.jobs[-1].cluster)
    known = {a.cluster for a in facts.attempts} | {i.cluster for i in facts.incidents} | {j.cluster for j in facts.jobs}
    unknown = (
        f"Nothing is known of a cluster {name} in this time; the sources have {', '.join(sorted(known)[:8]) or 'none'}."
    )
    return replace(
        facts,
        cluster=name,
        doubts=facts.doubts if name in known else (*facts.doubts, unknown),
        attempts=tuple(attempt for attempt in facts.attempts if attempt.cluster == name),
        incidents=tuple(incident for incident in facts.incidents if incident.cluster == name),
        jobs=tuple(job for job in facts.jobs if job.cluster == name),
    )


def _with_sizes(
    incidents: Iterable[ClosedIncident], attempts: Iterable[SupervisedAttempt], jobs: Iterable[RanJob]
) -> tuple[ClosedIncident, ...]:
    """Return the incidents with the nodes and GPUs of the run in which each happened."""
    incidents = tuple(incidents)
    wanted = {incident.job_id for incident in incidents}
    runs: dict[int, list[tuple[float, int, int]]] = {}
    # Attempts last, so that of two that began at once they count.
    for job in jobs:
        if job.job_id in wanted and job.started_at_s:
            runs.setdefault(job.job_id, []).append((job.started_at_s, job.node_count, job.gpus))
    for attempt in attempts:
        if attempt.job_id in wanted:
            t = attempt.times
            runs.setdefault(attempt.job_id, []).append((t.start_at_s, t.nodes, t.gpus))

    def sized(incident: ClosedIncident) -> ClosedIncident:
        begun = [run for run in runs.get(incident.job_id, ()) if run[0] <= incident.opened_at_s + 1]
        if not begun:
            return incident
        _, nodes, gpus = max(begun, key=lambda run: run[0])
        return replace(incident, nodes=nodes or incident.nodes, gpus=gpus or incident.gpus)

    return tuple(map(sized, incidents))


def _with_new_steps(
    incidents: Iterable[ClosedIncident], attempts: Iterable[SupervisedAttempt]
) -> tuple[ClosedIncident, ...]:
    """Return the incidents with the first step after each, and the first step that had not been made before.

    A supervisor ends an incident with the first step after it, even if that step had been made before. The attempts
    tell when training came as far as before; if they do not, that time stays unknown.
    """
    launches: dict[tuple[str, str, int], list[tuple[float, float | None]]] = {}
    for attempt in attempts:
        t = attempt.times
        own = ((t.first_step_at_s, t.first_new_step_at_s), *t.restarts_within)
        known_of = launches.setdefault((attempt.cluster, attempt.user, attempt.job_id), [])
        known_of.extend((first, new) for first, new in own if first is not None)

    def known(incident: ClosedIncident) -> ClosedIncident:
        told_s = incident.times.get("first_new_step")
        if told_s is None:
            return incident
        since_s, until_s = incident.times.get("fault", incident.opened_at_s), told_s + CLOCKS_S
        own = launches.get((incident.cluster, incident.user, incident.job_id), ())
        after = [one for one in own if since_s < one[0] <= until_s]
        first_s, new_s = max(after, default=(told_s, None), key=lambda one: one[0])
        times = {name: at_s for name, at_s in incident.times.items() if name != "first_new_step"}
        new = {} if new_s is None else {"first_new_step": new_s}
        return replace(incident, times=times | {"first_step": min(first_s, told_s)} | new)

    return tuple(map(known, incidents))
