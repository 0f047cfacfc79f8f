"""Judges whether the job is silent for too long. Pure: progress and the time in, an assessment out.

A suspicion costs little, since it only leads to captures. Whether to act is decided elsewhere, from the captures.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.policy.job.consequences import PATIENT_PHASES

_SAMPLES = 512
_QUANTILE = 0.99


class SilenceLevel(enum.IntEnum):
    """A level of how long the silence has lasted."""

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
    """The judgement of the silence.

    Attributes:
        ranks: Ranks that are silent beyond the limit.
        silent_s: Seconds since the last progress of any rank or line.
        limit_s: The limit that was, or will be, crossed.
        action_s: The silence after which something is done in any case.
    """

    level: SilenceLevel
    ranks: tuple[int, ...] = ()
    silent_s: float = 0.0
    limit_s: float = 0.0
    why: str = ""
    action_s: float = math.inf


class StepTimes:
    """The step times of one attempt; each attempt gets new ones."""

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

    def leave_out_pause(self, now_s: float) -> None:
        """Measure the next steps from now on: the time since the last steps is not a step's time."""
        self._last = {rank: (step, now_s) for rank, (step, _) in self._last.items()}

    def pause(self, rank: int) -> None:
        """Do not take the time from the last step of `rank` to its next: others have shown progress in between."""
        self._last.pop(rank, None)

    def knows(self, rank: int) -> bool:
        """Return whether a step of this rank was seen."""
        return rank in self._last

    def p99_s(self) -> float:
        """Return the 99th percentile of the recent steps, seconds; 0 if no step was seen."""
        if self._p99_s is None:  # used for each rank at each poll: sorted once
            ordered = sorted(self._samples)
            self._p99_s = ordered[min(len(ordered) - 1, int(_QUANTILE * len(ordered)))]
        return self._p99_s


@dataclass(frozen=True)
class LogLines:
    """Progress in the lines of the log.

    Attributes:
        at_s: When the last line with progress came, seconds since the epoch.
        times: Intervals of lines between which no rank has reported anything.
    """

    at_s: float
    times: StepTimes


def own_limit_s(steps: StepTimes, config: SuperviseConfig) -> float | None:
    """Return the suspicion limit by this attempt's own steps, seconds; None while too few were seen."""
    if steps.count < config.min_steps:
        return None
    return config.suspicion_p99_factor * steps.p99_s() + config.suspicion_floor_s


def limits(rank: RankProgress, steps: StepTimes, config: SuperviseConfig) -> tuple[float, float]:
    """Return the (suspicion, action) limits of a rank's silence, seconds."""
    action = config.action_limit_s
    if rank.phase_timeout_s is not None:
        # The program announced this limit itself: a longer silence is a fault.
        return rank.phase_timeout_s, rank.phase_timeout_s
    own = own_limit_s(steps, config)
    if rank.phase == "startup" or rank.step < 0:
        return config.startup_limit_s, config.startup_limit_s
    if rank.phase in PATIENT_PHASES or own is None:  # an announced pause has its own limit, or none but the site's
        return action, action
    return min(action, own), action


def _limits_of_all(
    ranks: Sequence[RankProgress], steps: StepTimes, config: SuperviseConfig
) -> dict[int, tuple[float, float]]:
    """Return the limits of each rank's silence. An announced pause covers all ranks: others wait for that rank."""
    own = {r.rank: limits(r, steps, config) for r in ranks}
    # The longest announced pause is computed once: in a checkpoint every rank announces one.
    announced = [own[r.rank] for r in ranks if r.phase in PATIENT_PHASES or r.phase_timeout_s is not None]
    longest = (max((suspect_s for suspect_s, _ in announced), default=0.0), max((a for _, a in announced), default=0.0))
    return {rank: (max(found[0], longest[0]), max(found[1], longest[1])) for rank, found in own.items()}


def assess(
    ranks: Iterable[RankProgress],
    steps: StepTimes,
    now_s: float,
    config: SuperviseConfig,
    lines: LogLines | None = None,
) -> Assessment:
    """Judge the silence of a job: the time since any rank, or a line of the log, has shown progress.

    The silence is too long once it is too long for one rank in its phase. If a line is newer than every report, the
    silence may also last as long as the usual time between lines. If no rank reports, the lines alone decide: they may
    come hours apart, and the site's action limit is meant for steps.
    """
    everyone = list(ranks)
    spoke_s = max((r.at_s for r in everyone), default=-math.inf)
    allowed, times = _limits_of_all(everyone, steps, config), steps
    if lines is not None and lines.at_s > spoke_s:
        spoke_s, own_s = lines.at_s, own_limit_s(lines.times, config)
        if own_s is None and not everyone:
            allowed = {-1: (config.startup_limit_s, config.startup_limit_s)}
        elif own_s is not None:
            of_ranks = allowed or {-1: (own_s, config.action_limit_s)}
            allowed = {rank: (max(own_s, found[0]), max(own_s, found[1])) for rank, found in of_ranks.items()}
            times = max((steps, lines.times), key=lambda known: own_limit_s(known, config) or 0.0)
    silent_s = max(0.0, now_s - spoke_s) if allowed else 0.0
    crossed = {rank: found for rank, found in allowed.items() if silent_s > found[0]}
    if not crossed:
        return Assessment(SilenceLevel.QUIET, silent_s=silent_s)
    limit_s = min(suspect_s for suspect_s, _ in crossed.values())
    why = f"no progress for {silent_s:.1f} s, limit {limit_s:.1f} s"
    if times.count >= config.min_steps:
        why += f" ({config.suspicion_p99_factor:g} × p99 step {times.p99_s():.2f} s + {config.suspicion_floor_s:g} s)"
    action_s = min(action_s for _, action_s in crossed.values())
    level = SilenceLevel.OVERDUE if silent_s > action_s else SilenceLevel.SUSPECT
    return Assessment(level, tuple(crossed), silent_s, limit_s, why, action_s)
