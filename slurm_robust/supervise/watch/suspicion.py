"""Is the job silent for too long? Pure: progress and the time in, an assessment out.

A suspicion is cheap: it only leads to captures. Whether to act is decided elsewhere, from the captures.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_robust.config import SuperviseConfig

_SAMPLES = 512
_QUANTILE = 0.99
PATIENT_PHASES = ("evaluate", "checkpoint", "idle")
"""Announced pauses: only their own limit, or the action limit, counts."""


class SilenceLevel(enum.IntEnum):
    """How long the silence has lasted."""

    QUIET = 0
    SUSPECT = 1
    OVERDUE = 2


@dataclass(frozen=True)
class RankProgress:
    """The last report of one rank; `at_s` is in seconds since the epoch."""

    rank: int
    step: int
    phase: str
    at_s: float
    phase_timeout_s: float | None = None


@dataclass(frozen=True)
class Assessment:
    """How the silence is judged.

    Attributes:
        ranks: Those that are silent beyond the limit.
        silent_s: Of the most silent of them (or of all, where none is suspect).
        limit_s: The limit that was, or will be, crossed.
    """

    level: SilenceLevel
    ranks: tuple[int, ...] = ()
    silent_s: float = 0.0
    limit_s: float = 0.0
    why: str = ""


class StepTimes:
    """This attempt's own step times; each attempt gets new ones."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, float]] = {}
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._p99_s: float | None = 0.0
        self.count = 0

    def saw(self, rank: int, step: int, at_s: float) -> None:
        """Note that `rank` completed `step` at that time."""
        known = self._last.get(rank)
        if known is None or step < known[0]:
            self._last[rank] = (step, at_s)
            return
        if step > known[0]:
            # One sample for each poll, of the mean step since the last one: a long step shows, short ones are averaged.
            # Log lines (rank -1) are judged by their own interval, however many steps lie between them.
            steps = step - known[0] if rank >= 0 else 1
            self._samples.append(max(0.0, (at_s - known[1]) / steps))
            self._p99_s = None
            self.count += steps
            self._last[rank] = (step, at_s)

    def knows(self, rank: int) -> bool:
        """Was a step of this rank seen?"""
        return rank in self._last

    def p99_s(self) -> float:
        """The 99th percentile of the recent steps, seconds; 0 where none was seen."""
        if self._p99_s is None:  # used for each rank at each poll: sorted once
            ordered = sorted(self._samples)
            self._p99_s = ordered[min(len(ordered) - 1, int(_QUANTILE * len(ordered)))]
        return self._p99_s


def own_limit_s(steps: StepTimes, config: SuperviseConfig) -> float | None:
    """The suspicion limit by this attempt's own steps, seconds; None while too few were seen."""
    if steps.count < config.min_steps:
        return None
    return config.suspicion_p99_factor * steps.p99_s() + config.suspicion_floor_s


def limits(rank: RankProgress, steps: StepTimes, config: SuperviseConfig) -> tuple[float, float]:
    """(suspicion, action) limits of a rank's silence, seconds."""
    action = config.action_limit_s
    if rank.phase_timeout_s is not None:
        # The program announced this limit itself: beyond it something is wrong.
        return rank.phase_timeout_s, rank.phase_timeout_s
    of_lines, own = rank.rank < 0, own_limit_s(steps, config)
    if rank.phase == "startup" or rank.step < 0 or (of_lines and own is None):
        return config.startup_limit_s, config.startup_limit_s
    if rank.phase in PATIENT_PHASES or own is None:
        return action, action
    # Lines may come hours apart: the site's limit is for steps.
    return (own, max(action, own)) if of_lines else (min(action, own), action)


def assess(ranks: Iterable[RankProgress], steps: StepTimes, now_s: float, config: SuperviseConfig) -> Assessment:
    """Judge the silence of a job.

    A rank counts as silent by its own last report and its own phase; ranks that train while another one evaluates wait
    for it, and its announcement covers them.
    """
    everyone = list(ranks)
    # The longest of all announced pauses, found first: in a checkpoint every rank announces one.
    announced = [
        limits(r, steps, config) for r in everyone if r.phase in PATIENT_PHASES or r.phase_timeout_s is not None
    ]
    patient_s = max((suspect_s for suspect_s, _ in announced), default=0.0)
    patient_action_s = max((action_s for _, action_s in announced), default=0.0)
    level, silent, longest, limit = SilenceLevel.QUIET, [], 0.0, 0.0
    for r in everyone:
        suspect_s, action_s = limits(r, steps, config)
        suspect_s, action_s = max(suspect_s, patient_s), max(action_s, patient_action_s)
        silent_s = now_s - r.at_s
        if silent_s > suspect_s:
            level = max(level, SilenceLevel.OVERDUE if silent_s > action_s else SilenceLevel.SUSPECT)
            silent.append(r.rank)
            if silent_s > longest:
                longest, limit = silent_s, suspect_s
    if level is SilenceLevel.QUIET:
        return Assessment(level, silent_s=max((now_s - r.at_s for r in everyone), default=0.0))
    why = f"no progress for {longest:.1f} s, limit {limit:.1f} s"
    if steps.count >= config.min_steps:
        why += f" ({config.suspicion_p99_factor:g} × p99 step {steps.p99_s():.2f} s + {config.suspicion_floor_s:g} s)"
    return Assessment(level, tuple(silent), longest, limit, why)
