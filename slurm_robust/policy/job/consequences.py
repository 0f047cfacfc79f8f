"""Decides what may be done about evidence of each grade, and when. Pure.

This is the only place that turns a grade into a consequence:

* `CONSEQUENCES` says in words what each grade allows; `docs/localization.md` shows it.
* `patience_s` says after how long a silence something is done. This time is learnt: it is never shorter than
  `supervise.healthy_pause_factor` × the longest healthy pause of the same kind that the training has shown.
* `may_evict` says whether a node may be left for a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.core.model import Grade

FIRST_STEP = "startup"
"""The kind of the pause before the first step. The other kinds are the phases that `slurm_robust.progress` knows."""
PATIENT_PHASES = ("evaluate", "checkpoint", "idle")
"""Pauses that a program announces, by the names of `slurm_robust.progress`."""


@dataclass(frozen=True)
class Consequence:
    """A row of a table: what may be done about evidence of a grade, and when."""

    what: str
    when: str


CONSEQUENCES: Mapping[Grade, Consequence] = {
    Grade.CERTAIN: Consequence(
        "the node is left if its fault is of infrastructure; else the attempt is ended and started again",
        "at once",
    ),
    Grade.STRONG: Consequence(
        "the attempt is ended. A node that is named is left; if none is named, the nodes are tested (the ladder)",
        "after `supervise.strong_patience_s` (75 s) without progress, so that it is done within 90 s of the last step",
    ),
    Grade.WEAK: Consequence(
        "it is announced and captured at once. Then the attempt is restarted in place, once. If the same is seen "
        "again, the nodes are tested. Only a node that fails a test is left: weak evidence evicts, quarantines, "
        "strikes or drains nobody, however often it comes",
        "the restart after `supervise.weak_patience_s` (5 min) without progress. If the training has never reported "
        "any, after `supervise.startup_limit_s` (30 min)",
    ),
    Grade.NONE: Consequence(
        "it is captured. A step that completes cancels everything that is due",
        "nothing before `supervise.action_limit_s` (30 min) or, before the first step, `supervise.startup_limit_s` "
        "(30 min), nor before 3 × the longest pause of the kind",
    ),
}
_CUT = "{kind}, cut short"
"""The kind under which pauses are remembered that were ended on weak evidence: they may have been healthy."""


@dataclass(frozen=True)
class Pauses:
    """The longest healthy pause of each kind that a training has shown, over restarts and requeues.

    Attributes:
        longest_s: Kind → the longest pause in seconds: from one sign of progress to the next, which ended the pause.
    """

    longest_s: Mapping[str, float] = field(default_factory=dict)

    def after(self, kind: str, pause_s: float) -> Pauses:
        """Return the pauses after a pause of this kind has ended by itself."""
        if pause_s <= self.longest_s.get(kind, 0.0):
            return self
        return replace(self, longest_s={**self.longest_s, kind: round(pause_s, 3)})

    def after_cut(self, kind: str, pause_s: float) -> Pauses:
        """Return the pauses after a pause was ended on weak evidence: the next pause of its kind is given more time.

        It is not known how long the pause would have lasted. The start-up is left out: it has limits of its own.
        """
        return self if kind == FIRST_STEP else self.after(_CUT.format(kind=kind), pause_s)

    def merged(self, other: Pauses) -> Pauses:
        """Return the longest pauses of both."""
        both = self
        for kind, pause_s in other.longest_s.items():
            both = both.after(kind, pause_s)
        return both


@dataclass(frozen=True)
class Silence:
    """A job that makes no progress.

    Attributes:
        silent_s: Seconds since the newest sign of progress of any rank.
        kind: Kind of the pause that the silence may be: `FIRST_STEP`, or the phase that was reported last.
        pauses: The healthy pauses of this training.
        strong_patience_s: `supervise.strong_patience_s`.
        weak_patience_s: `supervise.weak_patience_s`.
        startup_limit_s: `supervise.startup_limit_s`.
        pause_factor: `supervise.healthy_pause_factor`.
    """

    silent_s: float
    kind: str = "train"
    pauses: Pauses = field(default_factory=Pauses)
    strong_patience_s: float = 75.0
    weak_patience_s: float = 300.0
    startup_limit_s: float = 1800.0
    pause_factor: float = 3.0

    @classmethod
    def of(cls, silent_s: float, kind: str, pauses: Pauses, config: SuperviseConfig) -> Silence:
        """Return the silence, with the limits that the site chose."""
        strong_s, weak_s, startup_s = config.strong_patience_s, config.weak_patience_s, config.startup_limit_s
        return cls(silent_s, kind, pauses, strong_s, weak_s, startup_s, config.healthy_pause_factor)


def patience_s(grade: Grade, silence: Silence) -> float:
    """Return after how many seconds of silence something is done about this grade; infinite for `NONE`.

    Before the first step there is no pause to learn from, so strong evidence is given the patience of weak evidence. A
    job that has never reported a step may not be a training (an idle service, a notebook), so weak evidence is given
    the time of the start-up. An announced pause is only cut short if a pause of its kind was seen to end.
    """
    if grade is Grade.CERTAIN:
        return 0.0
    if grade is Grade.NONE:
        return math.inf
    longest_s = silence.pauses.longest_s
    learnt_s = longest_s.get(silence.kind)
    if learnt_s is None and silence.kind in PATIENT_PHASES:
        return math.inf
    first = learnt_s is None and silence.kind == FIRST_STEP
    if first and grade is Grade.WEAK and not longest_s:
        return max(silence.weak_patience_s, silence.startup_limit_s)
    least_s = silence.weak_patience_s if grade is Grade.WEAK or first else silence.strong_patience_s
    cut_s = longest_s.get(_CUT.format(kind=silence.kind), 0.0) if grade is Grade.WEAK else 0.0
    return max(least_s, silence.pause_factor * max(learnt_s or 0.0, cut_s))


def learnt_limit_s(kind: str, pauses: Pauses, config: SuperviseConfig) -> float:
    """Return for how many seconds of such a pause nothing is done, whatever the site's limits; 0 if none was learnt."""
    return config.healthy_pause_factor * pauses.longest_s.get(kind, 0.0)


def due(grade: Grade, silence: Silence | None) -> bool:
    """Return whether it is time to do something about corroborated evidence of this grade.

    `silence` is None if the incident is not about a silence; then it is time at once.
    """
    return silence is None or silence.silent_s >= patience_s(grade, silence)


def may_evict(grade: Grade) -> bool:
    """Return whether a node may be left for a verdict of this grade alone."""
    return grade in (Grade.CERTAIN, Grade.STRONG)
