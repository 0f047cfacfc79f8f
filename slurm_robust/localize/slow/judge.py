"""Which machine is slow? Step timings in, `Verdict` out; pure.

A slow machine is slow whatever the data: its ranks are slower than the ranks that do the same work, step after step, by
the same share. What all ranks of a pipeline stage have in common, what follows a replica's data, and what slows another
rank each step, is the program's. Where ranks end their steps together and nothing separates their own work from their
waiting, nobody can be named.

`case` chooses usable ranks and steps, `effects` compares ranks with their `peers`, `outliers` finds slow ones,
`confounders` excuses them, `verdict` decides and `wording` says it.
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
    """Who slows the job down.

    Args:
        timings: Of as many ranks and steps as there are; at least ten steps.
        sizes: The parallel layout; the one that came with the timings, where it is not given.
        order: In which it counts ranks, empty for Megatron's.
        world_size: Number of ranks, 0 for as many as the timings show.
    """
    # Supervisors judge timings late or never, and numpy costs 0.1 s and 16 MB.
    from slurm_robust.localize.slow.verdict import verdict_of  # noqa: PLC0415

    if not sizes:
        sizes, order = timings.layout, timings.layout_order
    return verdict_of(timings, sizes, order, world_size)


def with_timings(evidence: Evidence, timings: StepTimings, ranks_per_node: int | None = None) -> Evidence:
    """The evidence with timings, and their nodes and layout where nothing else gives them.

    Args:
        evidence: Of the incident, empty if there is none.
        timings: Of the same job.
        ranks_per_node: Names nodes by number where nothing names them; None to leave them unnamed.
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
    """What the timings say, with the layout of the evidence; None if there are none."""
    timings = evidence.timings
    if timings is None:
        return None
    named = replace(timings, nodes={**timings.nodes, **evidence.rank_nodes})
    return judge_timings(named, evidence.layout, evidence.layout_order, evidence.world_size)


def weigh(hung: Verdict | None, slow: Verdict | None) -> Verdict:
    """One verdict: a rank that stops the job is named before one that slows it; the other is in the detail."""
    if hung is None or slow is None:
        found = hung or slow
        return found if found is not None else Verdict(Conclusion.UNDETERMINED, "no evidence was given")
    if hung.conclusion in (Conclusion.CULPRIT, Conclusion.USER_CODE) or slow.conclusion is not Conclusion.CULPRIT:
        return replace(hung, detail="; ".join(filter(None, (hung.detail, f"step times: {slow.reason}"))))
    detail = "; ".join(filter(None, (slow.detail, f"stacks: {hung.reason}")))
    return replace(slow, detail=detail, classes=hung.classes, missing=(*slow.missing, *hung.missing))
