"""Collects what the policy must know to choose a rung of the ladder: which tests are possible here and now."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

from slurm_robust.policy.job.ladder import LadderOptions
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import expand
from slurm_robust.supervise.incident.replay_settings import replay_spec
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState

_RESUME_S = 300.0
"""Tests are only worth their time if the job's time limit leaves an attempt at least this long after them."""


def ladder_options(session: Session, attempt: AttemptState) -> LadderOptions:
    """Return what the ladder may do in this job.

    If somebody else launched the step, it cannot be started again after tests, so its incidents have no ladder.
    """
    config = session.config.ladder
    if session.command is None or session.channel is None:
        return LadderOptions()
    options = LadderOptions.of(config, replay_possible=replay_spec(session, attempt) is not None)
    if too_late(session):
        return replace(options, tests=(), replay_possible=False)
    if _time_left_s(session) < config.replay_budget_s + _RESUME_S:
        return replace(options, replay_possible=False)
    return options


async def standby_nodes(session: Session) -> int:
    """Return how many nodes the site's standby pools hold; only asked if a whole parallel group may be left."""
    if not session.config.ladder.over_evict:
        return 0
    prefix, client = session.config.standby.prefix, session.job.client
    try:
        found = await asyncio.to_thread(client.reservations)
    except SlurmError:
        return 0  # no node is left for a replacement that may not be there
    return len({n for pool in found if pool.name.startswith(f"{prefix}-") for n in expand(pool.nodes)})


def too_late(session: Session) -> str:
    """Return why the job does not have the time for tests, as a sentence; empty if it has."""
    left_s, needed_s = _time_left_s(session), session.config.ladder.budget_s + _RESUME_S
    if left_s >= needed_s:
        return ""
    return (
        f"no tests of the nodes: {max(0.0, left_s):.0f} s of the job's time limit are left, they need {needed_s:.0f} s"
    )


def _time_left_s(session: Session) -> float:
    job = session.job.info
    if job.time_limit_s is None or not job.start_at_s:
        return math.inf
    return job.start_at_s + job.time_limit_s - session.clock.now_s()
