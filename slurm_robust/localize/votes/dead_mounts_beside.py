"""Makes a sure verdict on a process in D state certain, if a mount is dead on its node alone."""

from __future__ import annotations

from dataclasses import replace

from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.grades import Ground
from slurm_robust.localize.stacks.process_tree import uninterruptible
from slurm_robust.model import Conclusion, Suspect, Verdict
from slurm_robust.text import joined


def with_dead_mounts(verdict: Verdict, evidence: Evidence) -> Verdict:
    """The verdict, as a certain one, if each of its suspects has a rank in D state and a dead mount on its node.

    The verdict must be sure by itself: a mount may be slow while a rank saves, and the rank goes on.
    """
    dead = {found.node: found for found in evidence.dead_mounts}
    if verdict.conclusion is not Conclusion.CULPRIT or not verdict.corroborated or not dead:
        return verdict
    last = evidence.captures[-1].ranks if evidence.captures else ()
    held = {r.rank for r in last if uninterruptible(r) is not None}
    if not all(suspect.node in dead and held.intersection(suspect.ranks) for suspect in verdict.suspects):
        return verdict
    suspects = tuple(_surer(suspect, dead[suspect.node].text) for suspect in verdict.suspects)
    reason, grade = joined(s.why for s in suspects), Ground.DEAD_MOUNT.grade
    return replace(verdict, suspects=suspects, reason=reason, grade=grade)


def _surer(suspect: Suspect, text: str) -> Suspect:
    return replace(suspect, why=f"{suspect.why}; {text}", infrastructure=True)
