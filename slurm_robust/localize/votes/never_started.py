"""Votes on ranks that have no process yet: names them, if all others wait for them in the start-up.

A container that is slow to come up looks the same, so the evidence is weak. If Slurm or a silent agent says that the
node is gone, the vote on silent nodes says so before.
"""

from __future__ import annotations

from collections.abc import Collection

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.localize.evidence import Capture, Evidence, RankCapture
from slurm_robust.localize.grades import Ground
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.blocking import BLOCKED, CONFIDENCE_ONE_CAPTURE, SLOW
from slurm_robust.localize.stacks.frames import short_file
from slurm_robust.localize.stacks.known_names import Kind
from slurm_robust.localize.stacks.motion import moving
from slurm_robust.localize.stacks.process_tree import rank_frames, rank_place

CONFIDENCE = 0.7


def judge_never_started(evidence: Evidence) -> Verdict | None:
    """Return a verdict if ranks were never seen to have a process, and all others wait in the start-up; else None."""
    if not evidence.captures or evidence.captures[-1].missing_nodes:
        return None
    last = evidence.captures[-1]
    ended = {e.rank for e in evidence.exits}
    started = {r.rank for capture in evidence.captures for r in capture.ranks if r.processes}
    absent = sorted({*range(evidence.world_size), *evidence.rank_nodes} - started - ended)
    if not absent or ended or len(absent) > evidence.world_size / 2 or not _all_wait(last, absent):
        return None
    captures, span_s = 1, 0.0
    for before in reversed(evidence.captures[:-1]):
        if not _all_wait(before, absent):
            break
        captures, span_s = captures + 1, last.at_s - before.at_s
    if span_s < BLOCKED.span_s or moving(evidence.captures, (r.rank for r in last.ranks if r.processes)):
        return None
    lasts = captures >= SLOW.captures and span_s >= SLOW.span_s
    # A job that reports no steps may be long past its start, and one of its ranks may be hidden from us.
    starts = all(r.progress is not None or rank_place(r).kind is Kind.STARTUP for r in last.ranks if r.processes)
    by_node: dict[str, list[int]] = {}
    for rank in absent:
        by_node.setdefault(_node_of(rank, evidence), []).append(rank)
    confidence = CONFIDENCE if lasts and starts else CONFIDENCE_ONE_CAPTURE
    suspects = []
    for node, ranks in sorted(by_node.items()):
        where = f"{name(ranks)} on {node}" if node else name(ranks)
        why = f"{where} has no process and never had one"
        suspects.append(Suspect(node, tuple(ranks), confidence, why, infrastructure=False))
    detail = f"all others wait at {rank_place(next(r for r in last.ranks if r.processes)).label} for {span_s:.0f} s"
    wanted = f"{SLOW.span_s:.0f} s in which no process comes (so far {span_s:.0f} s)"
    missing = (*(() if lasts else (wanted,)), *(() if starts else ("whether the job has made a step",)))
    reason = joined(s.why for s in suspects)
    grade = Ground.NEVER_STARTED.grade
    return Verdict(Conclusion.CULPRIT, reason, tuple(suspects), (), missing, not missing, detail, grade)


def _all_wait(capture: Capture, absent: Collection[int]) -> bool:
    others = [rank for rank in capture.ranks if rank.rank not in absent]
    return bool(others) and all(_waits_at_start(rank) for rank in others)


def _waits_at_start(rank: RankCapture) -> bool:
    """Return whether the rank is in the rendezvous, makes a group, or is in a collective before its first step."""
    where = rank_place(rank)
    if where.kind is Kind.STARTUP:
        return any(short_file(frame.file).startswith("torch/distributed/") for frame in rank_frames(rank) or ())
    return where.kind is Kind.COLLECTIVE and (rank.progress is None or rank.progress.step < 0)


def _node_of(rank: int, evidence: Evidence) -> str:
    """Return the node on which the rank would run; empty if it is not known."""
    nodes = evidence.rank_nodes
    if rank in nodes:
        return nodes[rank]
    below = next((nodes[r] for r in range(rank - 1, -1, -1) if r in nodes), "")
    above = next((nodes[r] for r in range(rank + 1, evidence.world_size) if r in nodes), "")
    return below if below == above else ""
