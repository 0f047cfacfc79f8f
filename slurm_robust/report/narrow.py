"""Narrows the facts to one job's training, or one user's trainings, for a report of less than the cluster. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from slurm_robust.report.facts import Facts

_NEAR_S = 3600.0


def of_job(facts: Facts, job: str) -> Facts:
    """Return the facts of a job, by its address, raw id or lineage, and of all other attempts of the same training.

    Facts of the cluster itself (pools, sizes) are left out: a job's share of them means nothing.
    """

    def means(*names: str) -> bool:
        return job in names

    lineages = {
        (a.cluster, a.user, a.times.lineage)
        for a in facts.attempts
        if means(a.times.job, str(a.job_id), a.times.lineage)
    } | {(i.cluster, i.user, i.lineage) for i in facts.incidents if means(i.job, str(i.job_id), i.lineage)}
    ids = {a.job_id for a in facts.attempts if (a.cluster, a.user, a.times.lineage) in lineages}
    kept = _narrowed(facts, lambda cluster, user, lineage: (cluster, user, lineage) in lineages)
    jobs = tuple(j for j in facts.jobs if means(j.job, str(j.job_id)) or j.job_id in ids)
    strikes = tuple(s for s in facts.strikes if any(s.lineage == lineage for _, _, lineage in lineages))
    return replace(kept, jobs=jobs, strikes=strikes)


def of_user(facts: Facts, user: str) -> Facts:
    """Return the facts of a user's trainings and jobs, without facts of the cluster itself."""
    kept = _narrowed(facts, lambda _, owner, __: owner == user)
    jobs = tuple(j for j in facts.jobs if j.user == user)
    return replace(kept, jobs=jobs, strikes=tuple(s for s in facts.strikes if s.user == user))


def is_empty(facts: Facts) -> bool:
    """Return whether nothing is left of the trainings and jobs."""
    return not (facts.attempts or facts.incidents or facts.jobs)


def _narrowed(facts: Facts, wanted: Callable[[str, str, str], bool]) -> Facts:
    attempts = tuple(a for a in facts.attempts if wanted(a.cluster, a.user, a.times.lineage))
    incidents = tuple(i for i in facts.incidents if wanted(i.cluster, i.user, i.lineage))
    keys = {i.key for i in incidents}
    # A drain belongs to the incident that named its node, as far as times tell.
    named: dict[str, list[float]] = defaultdict(list)
    for incident in incidents:
        for node in {*incident.evict, *incident.suspects}:
            named[node].append(incident.opened_at_s)
    near = (d for d in facts.drains if any(abs(d.at_s - at_s) < _NEAR_S for at_s in named.get(d.node, ())))
    return replace(
        facts,
        attempts=attempts,
        incidents=incidents,
        actions=tuple(a for a in facts.actions if a.incident in keys),
        drains=tuple(near),
        repairs=(),
        pools=(),
        sizes=(),
    )
