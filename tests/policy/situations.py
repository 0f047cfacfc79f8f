"""Situations to decide, and verdicts for them."""

from __future__ import annotations

from dataclasses import replace

from slurm_robust.core.model import Conclusion, Grade, Road, Suspect, Verdict
from slurm_robust.policy.job.situation import Situation

NODES = tuple(f"n{n}" for n in range(1, 6))


REQUEUES = (Road.SEAT, Road.OWNER_REQUEUE, Road.PLAIN_REQUEUE)


def culprit(
    *nodes: str, infrastructure: bool = True, corroborated: bool = True, grade: Grade = Grade.STRONG
) -> Verdict:
    """A verdict that names these nodes."""
    suspects = tuple(Suspect(node, (0,), 0.9, f"rank 0 on {node} is in D state", infrastructure) for node in nodes)
    reason = "; ".join(s.why for s in suspects)
    return Verdict(Conclusion.CULPRIT, reason, suspects, corroborated=corroborated, grade=grade)


UNDETERMINED = Verdict(Conclusion.UNDETERMINED, "all ranks wait at the same place", missing=("pairwise tests",))


USER_CODE = Verdict(Conclusion.USER_CODE, "rank 3 raised TypeError")


FINISHED = Verdict(Conclusion.NONE, "every rank ended with exit code 0")


def situation(verdict: Verdict, **more: object) -> Situation:
    """Five nodes, four of them train, the fifth is a healthy spare; the daemon answers."""
    base = Situation(verdict, NODES, 4, NODES[:4], healthy_spares=("n5",), batch_node="n1", daemon=True)
    return replace(base, **more)  # type: ignore[arg-type]
