"""Votes on ranks outside the collective that may be working there: a rank that moves, or may move, is not named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.localize.evidence import RankCapture
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.blocking import Blocking
from slurm_robust.localize.stacks.motion import Motion, Stillness
from slurm_robust.localize.stacks.place import StackPlace
from slurm_robust.localize.votes.held_ranks import GIL_CAPTURES

ENDLESS = "whether it ends by itself"
"""The missing evidence if a rank is busy in code that does not take long by nature."""
Observation = tuple[Blocking, Stillness]
"""What holds a rank, and for how long it has stood still."""


def verdict_at_work(
    moving: Sequence[RankCapture], places: Mapping[int, StackPlace], observed: Mapping[int, Observation], peers: str
) -> Verdict:
    """Return a verdict without a suspect: these ranks move outside the collective."""
    rank = moving[0]
    last = observed[rank.rank][1].last
    assert last is not None
    who, where = name(r.rank for r in moving), places[rank.rank].label
    if last.busy:
        what = f"is busy at {where} ({last.why})"
        slow = places[rank.rank].slow_by_nature
        reason = f"{who} on {rank.node} {what}: slow, or an endless loop"
        missing = f"the end of its {slow}" if slow else ENDLESS
        return Verdict(Conclusion.UNDETERMINED, reason, missing=(missing,), detail=peers)
    return Verdict(Conclusion.NONE, f"{who} on {rank.node} moved outside the collective ({last.why})", detail=peers)


def verdict_unsure(
    outside: Sequence[RankCapture],
    places: Mapping[int, StackPlace],
    observed: Mapping[int, Observation],
    peers: str,
    *,
    captures: int,
    gil: frozenset[int],
) -> Verdict | None:
    """Return an undetermined verdict if the ranks outside may rightly be at work, as far as was seen; else None."""
    first = outside[0]
    if captures < 2 and all(what.patience is None for what, _ in observed.values()):
        # After one capture, a rank is only a suspect if something holds it: user code may just be slow there.
        who, what = name(r.rank for r in outside), observed[first.rank][0].what
        reason = f"{who} on {first.node} is outside the collective ({what})"
        detail = f"{peers}; whether it moves is not known"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("a second capture",), detail=detail)
    if all(_may_be_at_work(r, places, observed[r.rank]) for r in outside):
        where = places[first.rank]
        what = f"is in {where.slow_by_nature}" if where.slow_by_nature else "stands"
        reason = f"{name(r.rank for r in outside)} on {first.node} {what} at {where.label}, and may be at work"
        return Verdict(Conclusion.UNDETERMINED, f"{reason} ({_why(observed[first.rank])})", detail=peers)
    chance = None if gil else _met_by_chance(outside, observed)
    if chance is not None:
        reason = f"rank {chance.rank} on {chance.node}: {observed[chance.rank][0].what}, and may be at work there"
        missing = (f"{GIL_CAPTURES} captures that show it there ({_why(observed[chance.rank])})",)
        return Verdict(Conclusion.UNDETERMINED, reason, missing=missing, detail=peers)
    return None


def _met_by_chance(outside: Sequence[RankCapture], observed: Mapping[int, Observation]) -> RankCapture | None:
    """Return a rank whose side thread was met with the GIL and uses a processor, if no rank is held more surely."""
    here = [observed[r.rank][0] for r in outside]
    if any(what.patience is None or what.infrastructure or what.by_loader for what in here):
        return None
    return next((r for r in outside if observed[r.rank][0].by_gil and _unsure(observed[r.rank])), None)


def _may_be_at_work(rank: RankCapture, places: Mapping[int, StackPlace], observation: Observation) -> bool:
    """Return whether the rank is not seen to be held, and uses a processor or is at work that takes long by nature."""
    what, still = observation
    slow_or_busy = bool(places[rank.rank].slow_by_nature) or (still.last is not None and still.last.busy)
    return what.patience is None and _unsure(observation) and slow_or_busy


def _unsure(observation: Observation) -> bool:
    return observation[1].last is not None and observation[1].last.motion is Motion.UNSURE


def _why(observation: Observation) -> str:
    return observation[1].last.why if observation[1].last is not None else ""
