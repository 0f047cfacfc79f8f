"""Votes on the progress that ranks report: training that moves has no culprit; ranks that are behind are named."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.localize.evidence import Capture, Evidence
from slurm_robust.localize.ranks import name

SAME_MOMENT_S = 5.0
"""Moments that are closer are not ordered: agents poll twice a second, clocks differ, and lines are read late."""
LAGGING_STEPS = 2
"""Ranks in one collective may differ by one completed step; a rank with a larger difference is left behind."""


def judge_progress(evidence: Evidence) -> Verdict | None:
    """Return a verdict without a culprit if a rank made a step or changed its phase between the last captures."""
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


def finished_before(evidence: Evidence) -> frozenset[int]:
    """Return ranks that ended with exit code 0 clearly before the last sign of progress: others went on."""
    well = [e for e in evidence.exits if e.exit_code == 0 and not (e.signal or e.oom_killed)]
    sign_s = _last_sign_s(evidence) - SAME_MOMENT_S if well else 0.0
    return frozenset(e.rank for e in well if e.at_s < sign_s)


def without_finished(evidence: Evidence) -> Evidence:
    """Return the evidence without captures of ranks that finished: no rank waits for them."""
    finished = finished_before(evidence)
    if not finished:
        return evidence
    captures = (replace(c, ranks=tuple(r for r in c.ranks if r.rank not in finished)) for c in evidence.captures)
    return replace(evidence, captures=tuple(captures))


def _last_sign_s(evidence: Evidence) -> float:
    """Return when a rank or the log last showed progress; 0 if never. A step dates from when it was first seen."""
    since: dict[int, tuple[tuple[int, str], float]] = {}
    for capture in evidence.captures:
        for rank in capture.ranks:
            if (now := rank.progress) is not None and now.step >= 0:
                shown, at_s = (now.step, now.phase), capture.at_s - max(now.age_s, 0.0)
                known = since.get(rank.rank)
                since[rank.rank] = shown, min(at_s, known[1]) if known is not None and known[0] == shown else at_s
    return max((evidence.last_sign_s, *(at_s for _, at_s in since.values())))


def left_behind(last: Capture) -> Verdict | None:
    """Return a verdict if all wait and a few have completed fewer steps than the others; None if none has."""
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
