"""Votes on the progress that ranks report: training that moves has no culprit; ranks that are steps behind do."""

from __future__ import annotations

from collections import Counter

from slurm_robust.localize.evidence import Capture, Evidence
from slurm_robust.localize.ranks import name
from slurm_robust.model import Conclusion, Suspect, Verdict
from slurm_robust.text import joined

LAGGING_STEPS = 2
"""Ranks in one collective may differ by one completed step; more is a rank left behind."""


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


def left_behind(last: Capture) -> Verdict | None:
    """A verdict where all wait and a few have completed fewer steps than the others; None where none has."""
    steps = {r.rank: r.progress.step for r in last.ranks if r.progress is not None}
    if len(steps) < len(last.ranks) or not steps:
        return None
    most = Counter(steps.values()).most_common(1)[0][0]
    behind = [r for r in last.ranks if steps[r.rank] <= most - LAGGING_STEPS]
    if not behind or len({r.node for r in behind}) > max(1, len({r.node for r in last.ranks}) // 2):
        return None
    suspects = []
    for node in sorted({r.node for r in behind}):
        here = tuple(r.rank for r in behind if r.node == node)
        least = min(steps[rank] for rank in here)
        why = f"{name(here)} on {node} completed step {least} while the others completed {most}"
        suspects.append(Suspect(node, here, 0.5, why, infrastructure=False))
    missing = ("flight recorder or NCCL RAS: who did not join",)
    return Verdict(Conclusion.CULPRIT, joined(s.why for s in suspects), tuple(suspects), missing=missing)
