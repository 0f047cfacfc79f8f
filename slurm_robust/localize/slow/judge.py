"""Judges which machine is slow: step timings in, `Verdict` out; pure.

A slow machine is slow with any data: its ranks are slower than the ranks that do the same work, step after step, by the
same share. Slowness that all ranks of a pipeline stage have in common, that follows a replica's data, or that hits
another rank each step, comes from the program. If ranks end their steps together and the timings do not separate their
own work from their waiting, no machine can be named.

`case` chooses usable ranks and steps, `effects` compares ranks with their `peers`, `outliers` finds slow ranks,
`confounders` finds other reasons for their slowness, `verdict` decides and `wording` writes the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.timings import StepTimings


def judge_timings(
    timings: StepTimings, sizes: Mapping[str, int] | None = None, order: str = "", world_size: int = 0
) -> Verdict:
    """Return the verdict on who slows the job down.

    Args:
        timings: Timings of as many ranks and steps as possible; at least ten steps.
        sizes: The parallel layout; if it is not given, the layout that came with the timings.
        order: The order in which the layout counts ranks, empty for Megatron's.
        world_size: Number of ranks, 0 for as many as the timings show.
    """
    # Import late: supervisors judge timings late or never, and numpy costs 0.1 s and 16 MB.
    from slurm_robust.localize.slow.verdict import verdict_of  # noqa: PLC0415

    if not sizes:
        sizes, order = timings.layout, timings.layout_order
    return verdict_of(timings, sizes, order, world_size)


def with_timings(evidence: Evidence, timings: StepTimings, ranks_per_node: int | None = None) -> Evidence:
    """Return the evidence with timings, and with their nodes and layout if the evidence has none.

    Args:
        evidence: Evidence of the incident; it may be empty.
        timings: Timings of the same job.
        ranks_per_node: If given, nodes without a name are named by number, with so many ranks each.
    """
    size = max(evidence.world_size, timings.ranks[-1] + 1)
    nodes = {rank: f"node{rank // ranks_per_node}" for rank in timings.ranks} if ranks_per_node else {}
    nodes.update(timings.nodes)
    nodes.update(evidence.rank_nodes)
    layout, order = evidence.layout, evidence.layout_order
    if not layout:
        layout, order = timings.layout, timings.layout_order
    return replace(evidence, world_size=size, rank_nodes=nodes, layout=layout, layout_order=order, timings=timings)


def judge_slowness(evidence: Evidence) -> Verdict | None:
    """Return the verdict on the timings, with the layout of the evidence; None if there are no timings."""
    timings = evidence.timings
    if timings is None:
        return None
    named = replace(timings, nodes={**timings.nodes, **evidence.rank_nodes})
    return judge_timings(named, evidence.layout, evidence.layout_order, evidence.world_size)


def weigh(hung: Verdict | None, slow: Verdict | None) -> Verdict:
    """Return one verdict: a rank that stops the job goes before a rank that slows it; the detail has the other."""
    if hung is None or slow is None:
        found = hung or slow
        return found if found is not None else Verdict(Conclusion.UNDETERMINED, "no evidence was given")
    if hung.conclusion in (Conclusion.CULPRIT, Conclusion.USER_CODE) or slow.conclusion is not Conclusion.CULPRIT:
        return replace(hung, detail="; ".join(filter(None, (hung.detail, f"step times: {slow.reason}"))))
    detail = "; ".join(filter(None, (slow.detail, f"stacks: {hung.reason}")))
    return replace(slow, detail=detail, classes=hung.classes, missing=(*slow.missing, *hung.missing))
