"""Says which incidents are failures, what broke in them, and how many nodes they concerned.

A failure is an incident that stopped its training: not one after which the training went on by itself (a false alarm),
and not one that a later incident of the same stop has superseded, which stands for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_robust.core.model import Attempt
from slurm_robust.report.facts import ClosedIncident, Facts, NodeDrain
from slurm_robust.report.figures.trainings import was_stopped

UNKNOWN = "unknown"
_INFRASTRUCTURE = frozenset({"node", "shared"})
_OF_A_NODE = frozenset({"node_lost", "node_fault"})


def is_failure(incident: ClosedIncident) -> bool:
    """Return whether the incident counts as a failure."""
    return was_stopped(incident) and incident.outcome != "superseded"


def is_infrastructure(incident: ClosedIncident) -> bool:
    """Return whether a node, or something that nodes share, was at fault.

    The rules of `diagnose` decide if they know the category; otherwise the daemon must have seen a node fail, or the
    verdict must have named a culprit that was evicted. An unknown cause does not count as infrastructure.
    """
    if incident.blame in ("node", "shared", "program", "nobody"):
        return incident.blame in _INFRASTRUCTURE
    return incident.kind in _OF_A_NODE or (incident.conclusion == "culprit" and bool(incident.evict))


def category_of(incident: ClosedIncident) -> str:
    """Return the cause; `node_lost` and `node_fault` if only the daemon's own kind tells it."""
    return incident.category or (incident.kind if incident.kind in _OF_A_NODE else UNKNOWN)


def began_at_s(incident: ClosedIncident) -> float:
    """Return the earliest known time of the incident."""
    known = [incident.times[key] for key in ("fault", "suspected") if key in incident.times]
    return min([*known, incident.opened_at_s])


def sizes_by_attempt(facts: Facts) -> Mapping[str, int]:
    """Nodes of each attempt, by the attempt's key in incidents."""
    return {
        Attempt(a.cluster, a.times.job, a.times.restart, int(a.times.start_at_s)).key: a.times.nodes
        for a in facts.attempts
    }


def nodes_of(incident: ClosedIncident, sizes: Mapping[str, int]) -> int:
    """Return how many nodes the incident's job had; 0 if unknown."""
    return sizes.get(incident.attempt, 0) or incident.nodes


def whole_drains(drains: Sequence[NodeDrain]) -> tuple[NodeDrain, ...]:
    """Return each drain once, with its first reason: the daemon writes a new drain if it changes the reason."""
    begins = {(drain.node, drain.at_s): drain for drain in drains}
    again = {(drain.node, drain.ended_at_s) for drain in drains if _goes_on(drain, begins)}
    found = []
    for drain in drains:
        if (drain.node, drain.at_s) not in again:
            last = drain
            while (follower := _goes_on(last, begins)) is not None:
                last = follower
            found.append(replace(drain, ended_at_s=last.ended_at_s, reverted=last.reverted))
    return tuple(found)


def _goes_on(drain: NodeDrain, begins: Mapping[tuple[str, float], NodeDrain]) -> NodeDrain | None:
    """Return the row with which the drain goes on."""
    end_s = drain.ended_at_s
    return begins.get((drain.node, end_s)) if end_s is not None and end_s > drain.at_s else None
