"""Votes on reported progress where all ranks wait: names ranks that are steps behind, so in another collective."""

from __future__ import annotations

from collections import Counter

from slurm_robust.localize.evidence import Capture
from slurm_robust.localize.ranks import name
from slurm_robust.model import Conclusion, Suspect, Verdict
from slurm_robust.text import joined

LAGGING_STEPS = 2
"""Ranks in one collective may differ by one completed step; more is a rank left behind."""


def left_behind(last: Capture) -> Verdict | None:
    """A verdict where all wait and a few have completed fewer steps than the others; None where none has."""
    steps = {r.rank: r.progress.step for r in last.ranks if r.progress is not None}
    if len(steps) < len(last.ranks) or not steps:
        return None
    most = Counter(steps.values()).most_common(1)[0][0]
    behind = [r for r in last.ranks if steps[r.rank] <= most - LAGGING_STEPS]
    if not behind or len({r.node for r in behind}) > max(1, len({r.node for r in last.ranks}) // 2):
        return None
    suspects = tuple(
        Suspect(
            node,
            tuple(r.rank for r in behind if r.node == node),
            0.5,
            f"{name(r.rank for r in behind if r.node == node)} on {node} completed step "
            f"{min(steps[r.rank] for r in behind if r.node == node)} while the others completed {most}",
        )
        for node in sorted({r.node for r in behind})
    )
    missing = ("flight recorder or NCCL RAS: who did not join",)
    return Verdict(Conclusion.CULPRIT, joined(s.why for s in suspects), suspects, missing=missing)
