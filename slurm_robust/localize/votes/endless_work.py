"""Votes on work without an end: names a rank that has long computed in one function while all others wait for it.

Only time tells an endless loop from a long computation, so the evidence is weak, and does not speak against the node.
Evaluation, checkpoints, compilation and the start may rightly take long: a rank there is never named.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.localize.evidence import Capture, Evidence, RankCapture
from slurm_robust.localize.grades import Ground, weakest
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.blocking import LIKELY, Patience
from slurm_robust.localize.stacks.known_names import Kind
from slurm_robust.localize.stacks.motion import Stillness, standing
from slurm_robust.localize.stacks.process_tree import rank_place, rank_process, stopped
from slurm_robust.localize.votes.outside_collective import others_wait

ENDLESS = Patience(3, 60.0)
"""Longer than a step of nearly all trainings; a step that keeps the GIL for `LIKELY` is not a usual step."""
CONFIDENCE = 0.7


def judge_endless_work(evidence: Evidence) -> Verdict | None:
    """Return a verdict if one rank, or ranks of one node, have long computed at one place; else None."""
    captures = evidence.captures
    if len(captures) < ENDLESS.captures or captures[-1].missing_nodes:
        return None
    last = captures[-1]
    outside = [rank for rank in last.ranks if not rank_place(rank).waits_for_peers]
    if len({rank.node for rank in outside}) != 1 or not all(_may_be_endless(r, evidence) for r in outside):
        return None
    still_for = standing(captures, (rank.rank for rank in outside))
    gil = {rank.rank for rank in outside if _keeps_gil(captures, rank.rank, still_for[rank.rank])}
    if not all(_endless(still_for[rank.rank], rank.rank in gil) for rank in outside):
        return None
    if not others_wait(evidence, {r.rank for r in outside}, min(still_for[r.rank].span_s for r in outside)):
        return None
    suspect = _suspect(outside, still_for, gil)
    missing = () if len(last.ranks) >= evidence.world_size else ("a capture of all ranks",)
    grade = weakest(Ground.HELD if r.rank in gil else Ground.OWN_CODE for r in outside)
    peers = "while all others wait in a collective"
    return Verdict(Conclusion.CULPRIT, suspect.why, (suspect,), (), missing, not missing, peers, grade)


def _may_be_endless(rank: RankCapture, evidence: Evidence) -> bool:
    where, dump = rank_place(rank), evidence.recorder.get(rank.rank)
    announced = rank.progress is not None and rank.progress.phase != "train"
    if where.kind not in (Kind.USER, Kind.LOADER) or where.slow_by_nature or announced or stopped(rank) is not None:
        return False
    # With an operation open on its device, the host may wait for that, with all of a processor.
    return dump is None or not dump.device_waits


def _keeps_gil(captures: Sequence[Capture], number: int, still: Stillness) -> bool:
    """Return whether a thread of the rank had the GIL in each capture that shows the rank at this place."""
    seen = [rank for capture in captures[-still.captures :] for rank in capture.ranks if rank.rank == number]
    processes = [rank_process(rank) for rank in seen]
    return all(found is not None and any(t.owns_gil for t in found.threads) for found in processes)


def _endless(still: Stillness, keeps_gil: bool) -> bool:
    busy = still.last is not None and (still.last.busy or still.moves)
    return (busy or keeps_gil) and (LIKELY if keeps_gil else ENDLESS).met_by(still)


def _suspect(ranks: Sequence[RankCapture], still_for: Mapping[int, Stillness], gil: Collection[int]) -> Suspect:
    first = ranks[0]
    still = still_for[first.rank]
    what = "kept the GIL" if first.rank in gil else "been busy"
    seen = f"{still.captures} captures over {still.span_s:.0f} s"
    why = f"{name(r.rank for r in ranks)} on {first.node} has {what} at {rank_place(first).label} in {seen}"
    detail = still.last.why if still.last is not None else ""
    numbers = tuple(sorted(r.rank for r in ranks))
    return Suspect(first.node, numbers, CONFIDENCE, why, infrastructure=False, detail=detail)
