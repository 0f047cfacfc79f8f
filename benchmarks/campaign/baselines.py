"""Two simple rules to compare with: what ByteRobust's paper describes, and the rank that came least far."""

from __future__ import annotations

from collections import Counter

from campaign.cases import Case
from campaign.scene import RankView

DOMINANT = 0.2
"""A class of stacks with at least this share of the ranks (or the largest one) counts as healthy."""


def _stack(rank: RankView) -> tuple[object, ...]:
    return tuple((p.state, p.threads[0].frames if p.threads else ()) for p in rank.processes)


def dominant_groups(case: Case) -> frozenset[str]:
    """Stacks that are equal as text form classes; what is in no large class evicts the group that it shares."""
    if not case.scenes:
        return frozenset()
    last = case.scenes[-1]
    stacks = {rank.rank: _stack(rank) for rank in last.ranks}
    sizes = Counter(stacks.values())
    if not sizes:
        return frozenset()
    largest = sizes.most_common(1)[0][1]
    healthy = {stack for stack, count in sizes.items() if count >= min(largest, DOMINANT * len(stacks))}
    outliers = {rank for rank, stack in stacks.items() if stack not in healthy}
    if not outliers:
        return frozenset()
    around = [g for g in case.layout.all_groups() if outliers <= set(g.ranks)]
    group = min(around, key=lambda g: len(g.ranks))
    # A group that is the whole job says nothing.
    return case.layout.nodes(outliers if group.kind == "world" else group.ranks)


def lowest_progress(case: Case) -> frozenset[str]:
    """The nodes of the ranks whose completed steps, or else whose recorder's counters, are the lowest."""
    if case.scenes and case.progress:
        steps = {rank.rank: rank.step for rank in case.scenes[-1].ranks}
        low = [rank for rank, step in steps.items() if step == min(steps.values())]
        if len(low) < len(steps) / 2:
            return case.layout.nodes(low)
    if case.recorders:
        entered = {seen.rank: sum(enqueued for enqueued, _ in seen.counters.values()) for seen in case.recorders}
        low = [rank for rank, count in entered.items() if count == min(entered.values())]
        return case.layout.nodes(low) if len(low) < len(entered) / 2 else frozenset()
    return frozenset()
