"""What was found on each node, and when?

Counts of the window: drains (reverted ones apart), strikes, failed tests, repairs, incidents that named the node, XIDs
in drain reasons, and hours out of service by our drains, clipped to the window. Left out: drains by people or other
tools, and warnings without a consequence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from slurm_robust.report.facts import Facts, NodeDrain
from slurm_robust.report.figures.failures import category_of, is_failure, whole_drains

HOUR_S, DAY_S = 3600.0, 86400.0


@dataclass(frozen=True)
class NodeEvent:
    """One finding on a node: `drain`, `strike`, `failed test`, `repair`, `incident`."""

    at_s: float
    node: str
    kind: str
    text: str


@dataclass(frozen=True)
class NodeHistory:
    """The history of one node in the window.

    Attributes:
        counts: The number of events by `NodeEvent.kind`.
        xids: The number of XIDs by their code.
        categories: The causes of incidents that evicted the node.
        out_hours: Hours out of service by drains of ours.
        is_out: Whether the node is still out of service.
    """

    node: str
    counts: Counter[str] = field(default_factory=Counter)
    reverted: int = 0
    xids: Counter[int] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    out_hours: float = 0.0
    is_out: bool = False
    last_at_s: float = 0.0


def node_events(facts: Facts) -> tuple[NodeEvent, ...]:
    """Everything that was found, in order of time."""
    return tuple(sorted(_events(facts), key=lambda event: (event.at_s, event.node, event.kind)))


def _events(facts: Facts) -> Iterator[NodeEvent]:
    for drain in whole_drains(facts.drains):
        yield NodeEvent(drain.at_s, drain.node, "drain", drain.reason)
    for strike in facts.strikes:
        kind = "failed test" if strike.failed_test else "strike"
        yield NodeEvent(strike.at_s, strike.node, kind, strike.failed_test or strike.why)
    for repair in facts.repairs:
        text = f"{repair.remedy}: {repair.outcome or 'under way'}"
        yield NodeEvent(repair.begun_at_s, repair.node, "repair", text)
    for incident in facts.incidents:
        if is_failure(incident):
            for node in sorted({*incident.evict, *incident.suspects}):
                yield NodeEvent(incident.opened_at_s, node, "incident", category_of(incident))


def node_histories(facts: Facts) -> tuple[NodeHistory, ...]:
    """Return every node with a finding, the node with the most findings first."""
    events: dict[str, list[NodeEvent]] = defaultdict(list)
    drains: dict[str, list[NodeDrain]] = defaultdict(list)
    for event in node_events(facts):
        events[event.node].append(event)
    for drain in facts.drains:
        drains[drain.node].append(drain)
    rows = [_history(node, found, drains[node], facts) for node, found in events.items()]
    return tuple(sorted(rows, key=lambda row: (-row.counts.total(), row.node)))


def _history(node: str, events: list[NodeEvent], drains: list[NodeDrain], facts: Facts) -> NodeHistory:
    xids = [drain.xid for drain in whole_drains(drains)]
    return NodeHistory(
        node,
        Counter(event.kind for event in events),
        reverted=sum(drain.reverted for drain in drains),
        xids=Counter(xid for xid in xids if xid is not None),
        categories=Counter(event.text for event in events if event.kind == "incident"),
        out_hours=_covered_s([(drain.at_s, drain.ended_at_s) for drain in drains], facts) / HOUR_S,
        is_out=any(drain.ended_at_s is None for drain in drains),
        last_at_s=events[-1].at_s,
    )


def _covered_s(spans: list[tuple[float, float | None]], facts: Facts) -> float:
    """Seconds of the window in at least one of the spans."""
    total, until = 0.0, facts.from_s
    for begin_s, end_s in sorted(spans, key=lambda span: span[0]):
        end = min(end_s if end_s is not None else facts.read_at_s, facts.to_s)
        total += max(0.0, end - max(begin_s, until))
        until = max(until, end)
    return total
