"""Votes on process states: names nodes whose processes a signal or a cgroup freezer stopped."""

from __future__ import annotations

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.localize.evidence import Evidence, RankCapture
from slurm_robust.localize.grades import Ground
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.blocking import CONFIDENCE_ONE_CAPTURE, SURE, blocking
from slurm_robust.localize.stacks.process_tree import stopped


def judge_stops(evidence: Evidence) -> Verdict | None:
    """Return a verdict if the last capture shows stopped processes; else None.

    If processes are stopped on most nodes, the job is suspended, which is not a fault. A debugger's stop is left to the
    votes that follow.
    """
    if not evidence.captures:
        return None
    held: dict[str, list[RankCapture]] = {}
    for rank in evidence.captures[-1].ranks:
        process = stopped(rank)
        if process is not None and process.state != "t":
            held.setdefault(rank.node, []).append(rank)
    if not held:
        return None
    who = name(r.rank for members in held.values() for r in members)
    nodes = set(evidence.rank_nodes.values()) | set(held)
    if len(nodes) > 1 and len(held) > len(nodes) / 2:
        reason = f"{who} are stopped, on most nodes: suspended by Slurm or by a person, no node is at fault"
        return Verdict(Conclusion.NONE, reason)
    suspects, sure = [], True
    for node, members in sorted(held.items()):
        times = _rounds_stopped(evidence, members[0].rank)
        span_s = times[-1] - times[0]
        enough = len(times) >= SURE.captures and span_s >= SURE.span_s
        sure = sure and enough
        what = blocking(members[0])
        seen = f"in {len(times)} captures over {span_s:.0f} s" if len(times) > 1 else ""
        ranks = tuple(sorted(r.rank for r in members))
        why = f"{name(ranks)} on {node}: {what.what}"
        confidence = what.confidence if enough else CONFIDENCE_ONE_CAPTURE
        suspects.append(Suspect(node, ranks, confidence, why, what.infrastructure, seen))
    reason, detail = joined(s.why for s in suspects), joined(filter(None, (s.detail for s in suspects)))
    missing = () if sure else ("a second capture of the stopped process",)
    grade = Ground.STOPPED.grade
    return Verdict(Conclusion.CULPRIT, reason, tuple(suspects), (), missing, sure, detail, grade)


def _rounds_stopped(evidence: Evidence, rank: int) -> list[float]:
    """Return the times of the captures, without a gap up to the last, in which this rank had a stopped process.

    Its other processes may move meanwhile, which does not make the stopped process go on.
    """
    times: list[float] = []
    for capture in reversed(evidence.captures):
        seen = next((r for r in capture.ranks if r.rank == rank), None)
        if seen is None or stopped(seen) is None:
            break
        times.insert(0, capture.at_s)
    return times
