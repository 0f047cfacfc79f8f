"""Recorder and stacks together: the recorder says who never joined, its stack says why.

The two are independent witnesses. Where they name the same node, the verdict is surer than either, and is acted on as
soon as the stacks alone would be; where they do not, the recorder's word stands and what the stack shows is told.
"""

from __future__ import annotations

from dataclasses import replace

from slurm_robust.localize.evidence import Evidence, RankCapture
from slurm_robust.localize.motion import Motion, stillness
from slurm_robust.localize.patience import blocking
from slurm_robust.localize.tree import rank_place
from slurm_robust.model import Conclusion, Suspect, Verdict

MAX_CONFIDENCE = 0.97
"""Two witnesses are not certainty: both may see the victim of a third."""


def with_stacks(recorded: Verdict, stacks: Verdict | None, evidence: Evidence) -> Verdict:
    """The recorder's verdict with what the stacks know.

    Args:
        recorded: A verdict of `judge_dumps`.
        stacks: What the votes on stacks say, None where they say nothing.
        evidence: With the captures.
    """
    if recorded.conclusion is not Conclusion.CULPRIT or not evidence.captures:
        return recorded
    on_the_move = _on_the_move(recorded, evidence)
    if on_the_move:
        reason = f"{recorded.reason}; but {on_the_move}"
        return Verdict(Conclusion.NONE, reason, missing=recorded.missing, detail=recorded.detail)
    seen = {r.rank: r for r in evidence.captures[-1].ranks}
    named = {s.node: s for s in stacks.suspects} if stacks is not None else {}
    suspects = tuple(_joined(s, named.get(s.node), seen) for s in recorded.suspects)
    agreed = stacks is not None and {s.node for s in suspects if s.node} == {n for n in named if n}
    if stacks is None or not agreed or not named:
        return replace(recorded, suspects=suspects)
    detail = "; ".join(filter(None, (recorded.detail, "the stacks agree", stacks.detail)))
    missing = tuple(dict.fromkeys((*recorded.missing, *stacks.missing)))
    return replace(recorded, suspects=suspects, detail=detail, missing=missing, corroborated=stacks.corroborated)


def _on_the_move(recorded: Verdict, evidence: Evidence) -> str:
    """How the first suspect moves, where all of them are seen to: whoever is late and at work is no culprit.

    A processor used at one place of the training step does not count: a host that waits for its device may do that.
    """
    slow = {r.rank for r in evidence.captures[-1].ranks if rank_place(r).slow_by_nature}
    looks = stillness(evidence.captures[-2:], (rank for s in recorded.suspects for rank in s.ranks))
    moves = {
        r: x.last
        for r, x in looks.items()
        if x.last and (x.last.motion is not Motion.STILL if r in slow else x.moves and not x.last.busy)
    }
    if not looks or set(moves) != set(looks):
        return ""
    rank, last = next(iter(moves.items()))
    return f"rank {rank} {'moves' if last.motion is Motion.MOVING else 'may be at work'} ({last.why})"


def _joined(suspect: Suspect, by_stacks: Suspect | None, seen: dict[int, RankCapture]) -> Suspect:
    """The suspect with what its rank's stack shows; surer where the stacks name its node too."""
    rank = next((seen[r] for r in suspect.ranks if r in seen), None)
    told = [suspect.detail]
    confidence, infrastructure = suspect.confidence, suspect.infrastructure
    if by_stacks is not None:
        told += [by_stacks.why, by_stacks.detail]
        confidence = 1 - (1 - suspect.confidence) * (1 - by_stacks.confidence)
        infrastructure = by_stacks.infrastructure
    elif rank is not None:
        where = rank_place(rank)
        told.append(f"its stack waits at {where.label}" if where.waits_for_peers else blocking(rank).what)
    detail = "; ".join(filter(None, told))
    return replace(
        suspect, confidence=round(min(confidence, MAX_CONFIDENCE), 3), infrastructure=infrastructure, detail=detail
    )
