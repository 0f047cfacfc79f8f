"""Tells people once that a silent job's stacks stand still, long before anything may be done about it.

A healthy program may look the same (a service that waits for requests), so there is no action and no suspicion: only a
line in the story, and in the claim for `srobust status`.
"""

from __future__ import annotations

import math
import time

from slurm_robust.core.model import Conclusion, Grade, Verdict
from slurm_robust.core.text import duration, shortened
from slurm_robust.localize.evidence import Capture
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.motion import Motion, motions
from slurm_robust.localize.stacks.process_tree import rank_place
from slurm_robust.policy.job.consequences import PATIENT_PHASES
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState

_PLACES = 3
"""The most places that are named; `srobust stacks` shows all."""


class Standstill:
    """How long the stacks of all ranks have stood still, and whether people were told."""

    def __init__(self, session: Session, attempt: AttemptState) -> None:
        self._session = session
        self._attempt = attempt
        self._still_s = 0.0
        self._told = ""

    def look(self, captures: list[Capture], verdict: Verdict, due_in_s: float) -> None:
        """Look at one more capture; `due_in_s`: when its verdict is acted on, if nothing moves; infinite for never."""
        job, now_s = self._session.job, self._session.clock.now_s()
        if not self._stands(captures):
            self.moved()
            return
        # Captures are shifted by the time for which the job was suspended.
        self._still_s += captures[-1].at_s - captures[-2].at_s
        if self._still_s < self._session.settings.weak_patience_s or not _waits(captures[-1], verdict):
            return
        if not self._told:
            self._told = _where(captures[-1])
            since = f"{time.strftime('%H:%M:%S', time.localtime(now_s - self._still_s))} ({duration(self._still_s)})"
            text = f"the stacks of all {len(captures[-1].ranks)} ranks have stood still since {since}: {self._told}"
            self._session.folder.log_event("note", f"{text}. {self._then(due_in_s)}")
        if job.claim.still != self._told:  # each other change of the claim takes it out
            job.tell(still_since_s=round(now_s - self._still_s, 3), still=self._told)

    def moved(self) -> None:
        """Take back the report: the job has moved."""
        if self._told:
            self._session.folder.log_event("note", "the stacks of the ranks move again")
            self._session.job.tell(still_since_s=0.0, still="")
        self._still_s, self._told = 0.0, ""

    def _stands(self, captures: list[Capture]) -> bool:
        """Return whether all living ranks were seen twice at one place each, without an announced pause."""
        if self._attempt.pause_kind in PATIENT_PHASES:
            return False
        found = motions(captures)
        return bool(found) and all(one.motion is not Motion.MOVING for one in found)

    def _then(self, due_in_s: float) -> str:
        """Return words for what is done if it stays so, when, and what a person may type."""
        session = self._session
        then = "So far they prove no hang, and nothing is done"
        if due_in_s < math.inf:
            at = time.strftime("%H:%M:%S", time.localtime(session.clock.now_s() + max(0.0, due_in_s)))
            done = "acted on" if session.acting else f"written down, and nothing is done ({session.why_idle})"
            then = f"If they stay so, that is {done} at {at}"
        look = f"srobust stacks {session.job.name}"
        return f"{then}. To look: {look}. If it works all the same, let it call progress.step (docs/engineer.md)"


def _waits(capture: Capture, verdict: Verdict) -> bool:
    """Return whether ranks seem to wait for others, or are held: a program that only sleeps is not reported.

    If ranks wait by sockets of their own, their stacks do not show it; but then they stand at different places.
    """
    stands = verdict.conclusion is not Conclusion.NONE and verdict.grade is not Grade.NONE
    places = [rank_place(rank) for rank in capture.ranks]
    apart = verdict.conclusion is Conclusion.UNDETERMINED and len({place.label for place in places}) > 1
    return stands or apart or any(place.waits_for_peers or place.in_rendezvous for place in places)


def _where(capture: Capture) -> str:
    """Return `ranks 0,2-3 in all_reduce (train.py:12), rank 1 in sleep (data.py:7)`, the most ranks first."""
    places: dict[str, list[int]] = {}
    for rank in capture.ranks:
        places.setdefault(rank_place(rank).label or "an unknown place", []).append(rank.rank)
    ordered = sorted(places.items(), key=lambda item: (-len(item[1]), item[1]))
    said = [f"{name(ranks)} in {label}" for label, ranks in ordered[:_PLACES]]
    more = len(ordered) - len(said)
    return shortened(", ".join([*said, *([f"{more} more places"] if more else [])]), 200)
