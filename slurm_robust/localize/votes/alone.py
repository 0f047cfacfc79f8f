"""Votes on the only rank of a job: no other rank waits for it, so only the kernel shows what holds it."""

from __future__ import annotations

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.grades import Ground
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.blocking import CONFIDENCE_ONE_CAPTURE, SLOW, blocking
from slurm_robust.localize.stacks.motion import stillness
from slurm_robust.localize.stacks.process_tree import uninterruptible
from slurm_robust.localize.votes.outside_collective import still_wanted


def judge_alone(evidence: Evidence) -> Verdict | None:
    """Return a verdict on a lone rank that stays in D state; None for any other job.

    The evidence is weak: slow storage looks like dead storage, and there is no peer to compare with.
    """
    last = evidence.captures[-1] if evidence.captures else None
    if last is None or len(last.ranks) != 1 or evidence.world_size > 1 or last.missing_nodes:
        return None
    rank = last.ranks[0]
    still = stillness(evidence.captures, [rank.rank])[rank.rank]
    if uninterruptible(rank) is None or still.moves:
        return None
    missing = () if SLOW.met_by(still) else (still_wanted(SLOW, still),)
    what = blocking(rank)
    why = f"{name([rank.rank])} on {rank.node} is alone, and its {what.what}"
    confidence = what.confidence if still.captures > 1 else CONFIDENCE_ONE_CAPTURE
    suspect = Suspect(rank.node, (rank.rank,), confidence, why, infrastructure=False, detail=what.detail)
    grade = Ground.ALONE.grade
    return Verdict(Conclusion.CULPRIT, why, (suspect,), (), missing, not missing, what.detail, grade)
