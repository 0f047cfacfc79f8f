"""Slowness beside a hang: timings among other evidence, and two verdicts made into one."""

from __future__ import annotations

from dataclasses import replace

from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.slow.judge import judge_timings
from slurm_robust.localize.slow.timings import StepTimings
from slurm_robust.model import Conclusion, Verdict


def with_timings(evidence: Evidence, timings: StepTimings, ranks_per_node: int | None = None) -> Evidence:
    """The evidence with timings, and their nodes and layout where nothing else gives them.

    Args:
        evidence: Of the incident, empty where there is none.
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
    """What the timings say, with the layout of the evidence; None where there are none."""
    timings = evidence.timings
    if timings is None:
        return None
    named = replace(timings, nodes={**timings.nodes, **evidence.rank_nodes})
    return judge_timings(named, evidence.layout, evidence.layout_order, evidence.world_size)


def weigh(hung: Verdict | None, slow: Verdict | None) -> Verdict:
    """One verdict: a rank that stops the job is named before one that slows it; the other is in the detail.

    Args:
        hung: From stacks and recorders, None where there were none.
        slow: From timings, None where there were none.
    """
    if hung is None or slow is None:
        found = hung or slow
        return found if found is not None else Verdict(Conclusion.UNDETERMINED, "no evidence was given")
    if hung.conclusion in (Conclusion.CULPRIT, Conclusion.USER_CODE) or slow.conclusion is not Conclusion.CULPRIT:
        return replace(hung, detail="; ".join(filter(None, (hung.detail, f"step times: {slow.reason}"))))
    detail = "; ".join(filter(None, (slow.detail, f"stacks: {hung.reason}")))
    return replace(slow, detail=detail, classes=hung.classes, missing=(*slow.missing, *hung.missing))
