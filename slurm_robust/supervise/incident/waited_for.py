"""Tells whether running ranks wait for ranks that have ended. Independent runs in one step go on without them.

Two captures that find all other ranks in a collective do not prove it: a healthy training is there most of the time,
and NCCL's traffic is not seen. So a silence is needed, too, or, if the job reports nothing, a rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.core.model import Grade
from slurm_robust.localize.evidence import Capture, Evidence, RankExit
from slurm_robust.localize.stacks.blocking import LIKELY, SURE
from slurm_robust.localize.stacks.motion import moving, spinning, stillness
from slurm_robust.localize.votes.outside_collective import others_wait
from slurm_robust.localize.votes.waiting_at_rest import resting_s, with_traffic
from slurm_robust.policy.job.consequences import PATIENT_PHASES, Silence, patience_s
from slurm_robust.supervise.reported.fleet import RankInfo
from slurm_robust.supervise.watch.attempt_state import AttemptState

_GAPS = 6
"""The most captures in which a rest is seen: an investigation keeps the last eight."""


def ended_ranks(attempt: AttemptState) -> dict[int, RankExit]:
    """Return the ranks that are known to have ended badly; else those that have vanished; both if no rank lives.

    Vanished ranks only count if all ranks are known: if a part of the world runs in another step, ranks may wait for
    that part, and a vanished process may be a helper.
    """
    if attempt.exits and not attempt.fleet.alive:
        return {**attempt.vanished, **attempt.exits}
    return attempt.exits or (attempt.vanished if attempt.fleet.complete else {})


def unreported_ranks(attempt: AttemptState) -> dict[int, RankExit]:
    """Return the ranks that are gone from nodes without a reported end, while ends on other nodes are reported.

    On these nodes Slurm's own process of the step may be gone, too. While it lives, it reports each bad end.
    """
    fleet = attempt.fleet
    if not attempt.exits or -1 in attempt.exits or not fleet.complete:
        return {}
    told = {e.node for e in attempt.exits.values()}
    told |= {r.node for r in fleet.ranks.values() if (r.step_id, r.task) in fleet.ends}
    gone = (r for r in fleet.ranks.values() if r.gone_at_s and not r.task_lives and r.node not in told)
    return {r.rank: RankExit(r.rank, r.node, r.missed_at_s) for r in gone}


def waited_for_in_s(
    attempt: AttemptState, captures: Sequence[Capture], now_s: float, settings: SuperviseConfig
) -> float:
    """Return in how many seconds the ended ranks count as waited for, if nothing moves until then.

    The result is 0 if they do now, and infinite if nothing shows that they will. Only captures since the last sign of
    progress count.

    * In a job that reports progress, all others are in a collective, and the silence is longer than a step may take
      (`_silence_s`).
    * In a job that reports nothing, all others have rested in a collective for `supervise.strong_patience_s`; for
      `supervise.weak_patience_s` if the ended rank may have finished.
    * Otherwise, all others stand still for the patience of weak evidence, whatever they wait for. If the job reports
      nothing, its tasks may be independent and sleep for minutes: then the patience is the action limit, unless a
      signal has ended the rank.
    """
    ended = ended_ranks(attempt)
    since = tuple(c for c in captures if not attempt.reports or c.at_s > attempt.last_sign_s)
    others = {rank.rank for rank in since[-1].ranks} - set(ended) if since else set()
    if not ended or not others or with_traffic(since, others):
        return math.inf
    if not attempt.reports:
        wanted_s = settings.strong_patience_s if attempt.exits else settings.weak_patience_s
        rest_s = resting_s(since, others)
        rest_in_s = max(wanted_s - rest_s, wanted_s / _GAPS) if rest_s < wanted_s else 0.0
        return min(rest_in_s if rest_s > 0 else math.inf, _still_in_s(attempt, since, others, now_s, settings))
    found_s = math.inf
    if others_wait(Evidence(len(others), {}, since), set(ended), SURE.span_s):
        found_s = _silence_s(attempt, ended.values(), since, others, settings) - (now_s - attempt.last_sign_s)
    return max(0.0, min(found_s, _still_in_s(attempt, since, others, now_s, settings)))


def _silence_s(
    attempt: AttemptState,
    ended: Iterable[RankExit],
    since: Sequence[Capture],
    others: Collection[int],
    settings: SuperviseConfig,
) -> float:
    """Return the silence after which others in a collective count as waiting for the ended ranks.

    This is the job's own limit of a step if the end explains the silence: steps did not go on for longer after the end,
    and the limit is known to be that of the running ranks. If it may be another run's, these ranks have to be at rest.
    """
    silence = Silence.of(0.0, attempt.pause_kind, attempt.pauses, settings)
    strong_s, own_s = patience_s(Grade.STRONG, silence), attempt.own_limit_s(settings)
    at_rest = resting_s(since, others) >= SURE.span_s
    if math.isinf(strong_s):  # an announced pause of unknown length; if all rest, no rank works at it
        strong_s = settings.strong_patience_s if at_rest else settings.action_limit_s
    if own_s is None or silence.kind in PATIENT_PHASES:
        return strong_s
    if attempt.last_sign_s - max(end.at_s for end in ended) > own_s:
        return strong_s
    if at_rest:
        return min(own_s, strong_s)
    return min(max(own_s, _slowest_limit_s(attempt.fleet.alive, settings)), strong_s)


def _slowest_limit_s(ranks: Iterable[RankInfo], settings: SuperviseConfig) -> float:
    """Return the step limit of the slowest of these ranks by its own reports; infinite if one reports no steps."""
    limits = [0.0]
    for rank in ranks:
        steps = rank.progress.step - rank.first_step if rank.progress is not None and rank.first_step >= 0 else 0
        if rank.progress is None or steps <= 0:
            return math.inf
        mean_s = (rank.progress.at_s - rank.first_step_at_s) / steps
        limits.append(settings.suspicion_p99_factor * mean_s + settings.suspicion_floor_s)
    return max(limits)


def _still_in_s(
    attempt: AttemptState, since: Sequence[Capture], others: Collection[int], now_s: float, settings: SuperviseConfig
) -> float:
    """Return 0 if all others have stood still for long enough, whatever they wait for; else infinity."""
    if len(since) < LIKELY.captures or since[-1].at_s - since[0].at_s < LIKELY.span_s:
        return math.inf
    limit_s = settings.weak_patience_s
    if attempt.reports:
        still = not set(moving(since, others)) - spinning(since, others)
        return 0.0 if still and now_s - attempt.last_sign_s >= limit_s else math.inf
    # Long computing at one place looks like spinning, and there are no steps to tell: here only rest counts.
    if not any(e.signal for e in attempt.exits.values()):
        limit_s = settings.action_limit_s
    return 0.0 if all(still.span_s >= limit_s for still in stillness(since, others).values()) else math.inf
