"""Adds what broke if the job's own words do not say it: the reason of the suspect's later drain. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slurm_robust.diagnose.findings import matcher
from slurm_robust.diagnose.rulebook import Rule
from slurm_robust.diagnose.taxonomy import Blame
from slurm_robust.report.facts import ClosedIncident, NodeDrain

BEFORE_S, AFTER_S = 60.0, 600.0
"""A drain that began so long before or after the incident belongs to it: a check at the job's end finds what broke."""


def with_drains(incidents: Iterable[ClosedIncident], drains: Iterable[NodeDrain]) -> tuple[ClosedIncident, ...]:
    """Return the incidents; one without a category gets the drain's of the evicted node, if its reason blames the node.

    A needless drain is no evidence.
    """
    by_node: dict[str, list[NodeDrain]] = {}
    for drain in sorted((drain for drain in drains if not drain.reverted), key=lambda drain: drain.at_s):
        by_node.setdefault(drain.node, []).append(drain)

    def caused(incident: ClosedIncident) -> ClosedIncident:
        if incident.category:
            return incident
        from_s, to_s = incident.opened_at_s - BEFORE_S, incident.opened_at_s + AFTER_S
        near = (d for node in incident.evict for d in by_node.get(node, ()) if from_s <= d.at_s <= to_s)
        for drain in near:
            rule = matcher().match(drain.reason) or _of_xid(drain)
            if rule is not None and rule.blame is Blame.NODE:
                return replace(incident, category=rule.category.name, blame=rule.blame.value)
        return incident

    return tuple(map(caused, incidents))


def _of_xid(drain: NodeDrain) -> Rule | None:
    """Return the rule for the XID that the reason names, independent of the other words in the reason."""
    return matcher().match(f"NVRM: Xid (PCI:0000:00:00): {drain.xid}, ") if drain.xid is not None else None
