"""Deals with hangs about which nothing is done yet: when something will be done, and who is told meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from slurm_robust.core.model import Conclusion, Grade, Incident
from slurm_robust.localize.evidence import Capture
from slurm_robust.localize.stacks.motion import Motion, motions
from slurm_robust.localize.votes.busy_ranks import ENDLESS
from slurm_robust.policy.job.consequences import patience_s
from slurm_robust.supervise.outcome import ExecutePlan
from slurm_robust.supervise.reported.suspicion import Assessment
from slurm_robust.supervise.session import Session

_LIKELY = 0.5
"""People are not told of less likely culprits: those may do work that takes long by nature."""
_HALF = 0.5
"""If more than this share of the ranks computes, the job counts as working."""


def due_in_s_of(order: ExecutePlan) -> float:
    """Return in how many seconds the evidence is acted on, if it stays as it is; infinite if it is not sure enough."""
    silence = order.situation.silence if order.situation is not None else None
    if silence is None or not order.verdict.corroborated:
        return math.inf
    left_s = patience_s(order.verdict.grade, silence) - silence.silent_s
    return left_s if left_s > 0 else math.inf


def nobody_may_act(order: ExecutePlan, due_in_s: float) -> bool:
    """Return whether the evidence would be acted on by now, if the step were ours to start again."""
    outside = order.situation is not None and order.situation.outside
    return outside and order.verdict.corroborated and due_in_s == math.inf


def seen_in_vain(order: ExecutePlan, due_in_s: float, captures: Sequence[Capture]) -> bool:
    """Return whether the stacks show a hang, not surely enough to act, for as long as weak evidence gets.

    The stacks name the rank that holds the others up; or they name no rank, but all ranks stand still, most of them at
    rest. A pause that the program has announced, or has shown to be healthy, is given its own time.
    """
    verdict, silence = order.verdict, order.situation.silence if order.situation is not None else None
    if silence is None or due_in_s < math.inf or silence.silent_s < patience_s(Grade.WEAK, silence):
        return False
    named = verdict.conclusion is Conclusion.CULPRIT and sum(s.confidence for s in verdict.suspects) >= _LIKELY
    if named or ENDLESS in verdict.missing:
        return True
    rests = _at_rest(captures)
    return rests is not None and (verdict.conclusion is Conclusion.UNDETERMINED or 0 < rests < 1)


def _at_rest(captures: Sequence[Capture]) -> float | None:
    """Return the share of ranks at rest; None unless all ranks stand where they stood, and half of them rest or more.

    The other ranks compute at one place: in a very long step, or in an endless loop.
    """
    found = motions(captures)
    if not found or not all(rank.processes for rank in captures[-1].ranks):
        return None  # a rank that is gone is another case
    rests = sum(m.motion is Motion.STILL and not m.busy for m in found) / len(found)
    return rests if rests >= _HALF and all(m.motion is Motion.STILL or m.busy for m in found) else None


async def tell_seen(session: Session, incident: Incident, assessment: Assessment) -> None:
    """Tell people of a hang that is not sure enough to be acted on yet, and when it is acted on all the same."""
    acts_at_s = session.clock.now_s() + assessment.action_s - assessment.silent_s
    at = time.strftime("%H:%M:%S", time.localtime(acts_at_s))
    then = f"nothing is done before {at}" if session.acting else f"nothing is done ({session.why_idle})"
    job = session.job.name
    text = f"the evidence is not sure enough, so {then}, unless it changes; the daemon is told. "
    text += f"To look: srobust stacks {job}. To start the job anew now: scontrol requeue {job}"
    session.folder.log_event("note", text, incident=incident.id)
    await session.job.report(incident, session.config.mode, acts_at_s)
