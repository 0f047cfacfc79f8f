"""Weighs a verdict on D state by mounts: certain if a mount is dead on its node alone, weak if also on others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.localize.dead_mounts import DeadMount
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.grades import Ground
from slurm_robust.localize.stacks.process_tree import uninterruptible


def with_dead_mounts(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Return the verdict, as certain if each suspect has a rank in D state and a dead mount on its node alone.

    The verdict must be corroborated by itself: a mount may be slow while a rank saves, and the rank goes on. If no
    mount is dead on a suspect's node alone, but one is silent on other nodes, too, the node is not blamed.
    """
    dead = {found.node: found for found in sorted(evidence.dead_mounts, key=lambda found: bool(found.answers_on))}
    if verdict.conclusion is not Conclusion.CULPRIT or not verdict.corroborated or not dead:
        return verdict
    last = evidence.captures[-1].ranks if evidence.captures else ()
    held = {r.rank for r in last if uninterruptible(r) is not None}
    away = {node: found for node, found in dead.items() if not found.answers_on}
    if any(suspect.node in away and held.intersection(suspect.ranks) for suspect in verdict.suspects):
        return _of_a_server(verdict, away)
    if not all(suspect.node in dead and held.intersection(suspect.ranks) for suspect in verdict.suspects):
        return verdict
    suspects = tuple(_surer(suspect, dead[suspect.node].text) for suspect in verdict.suspects)
    reason, grade = joined(s.why for s in suspects), Ground.DEAD_MOUNT.grade
    return replace(verdict, suspects=suspects, reason=reason, grade=grade)


def _of_a_server(verdict: Verdict, away: Mapping[str, DeadMount]) -> Verdict:
    suspects = tuple(
        replace(s, why=f"{s.why}; {away[s.node].text}", infrastructure=False) if s.node in away else s
        for s in verdict.suspects
    )
    return replace(verdict, suspects=suspects, reason=joined(s.why for s in suspects), grade=Ground.SERVER_AWAY.grade)


def _surer(suspect: Suspect, text: str) -> Suspect:
    return replace(suspect, why=f"{suspect.why}; {text}", infrastructure=True)
