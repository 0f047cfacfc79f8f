"""Votes on the progress that ranks report: training that moves has no culprit."""

from __future__ import annotations

from slurm_robust.localize.evidence import Evidence
from slurm_robust.model import Conclusion, Verdict


def judge_progress(evidence: Evidence) -> Verdict | None:
    """No culprit where a rank completed a step, or changed its phase, between the last two captures; else None."""
    if len(evidence.captures) < 2:
        return None
    before, after = evidence.captures[-2:]
    old = {r.rank: r.progress for r in before.ranks}
    for rank in after.ranks:
        was, now = old.get(rank.rank), rank.progress
        if was is not None and now is not None and (was.step < now.step or was.phase != now.phase):
            steps = f"from step {was.step} ({was.phase}) to step {now.step} ({now.phase})"
            return Verdict(Conclusion.NONE, f"training moves: rank {rank.rank} went {steps}")
    return None
