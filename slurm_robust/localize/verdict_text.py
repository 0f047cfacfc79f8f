"""Writes a verdict for people and for tools: text for the incident report, and the object of `localize --json`."""

from __future__ import annotations

from typing import Any

from slurm_robust.core.model import Conclusion, Grade, Verdict
from slurm_robust.localize.ranks import name, unfold

_HEADLINES = {
    Conclusion.CULPRIT: "culprit",
    Conclusion.NONE: "no culprit",
    Conclusion.USER_CODE: "the program's own error",
    Conclusion.UNDETERMINED: "undetermined",
}
INNERMOST_FRAMES = 12
"""The most frames that are shown of a class: outer frames are always the same training loop."""


def to_json(verdict: Verdict) -> dict[str, Any]:
    """Return the object that `localize --json` prints; keys may be added, but are never changed."""
    return {
        "conclusion": verdict.conclusion.value,
        "reason": verdict.reason,
        "detail": verdict.detail,
        "corroborated": verdict.corroborated,
        "grade": verdict.grade.value,
        "suspects": [
            {
                "node": suspect.node,
                "ranks": list(suspect.ranks),
                "confidence": suspect.confidence,
                "why": suspect.why,
                "detail": suspect.detail,
                "infrastructure": suspect.infrastructure,
            }
            for suspect in verdict.suspects
        ],
        "classes": [{"ranks": c.ranks, "stack": list(c.stack)} for c in verdict.classes],
        "missing": list(verdict.missing),
    }


def to_text(verdict: Verdict) -> str:
    """Return the verdict as text: conclusion, suspects, classes of ranks, and what was missing."""
    sure = ", corroborated" if verdict.corroborated else ""
    grade = "" if verdict.grade is Grade.NONE else f", {verdict.grade.value} evidence"
    lines = [f"{_HEADLINES[verdict.conclusion]}{grade}{sure}: {verdict.reason}"]
    if verdict.detail:
        lines.append(f"  {verdict.detail}")
    for suspect in verdict.suspects:
        kind = "" if suspect.infrastructure else ", no evidence against its node"
        who = name(suspect.ranks) if suspect.ranks else "no rank"
        where = f"{suspect.node} ({who})" if suspect.node else who
        lines.append(f"  suspect {where}, confidence {suspect.confidence:.2f}{kind}: {suspect.why}")
    lines.extend(f"  missing: {what}" for what in verdict.missing)
    for number, members in enumerate(verdict.classes, 1):
        lines.append(f"  class {number}: {name(unfold(members.ranks))}")
        hidden = len(members.stack) - INNERMOST_FRAMES
        if hidden > 0:
            lines.append(f"    … {hidden} outer frames")
        lines.extend(f"    {frame}" for frame in members.stack[-INNERMOST_FRAMES:])
    return "\n".join(lines)
