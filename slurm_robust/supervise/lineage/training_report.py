"""Writes the training's progress into the claim, for the daemon: when steps were made, and what time was lost.

The progress is reported with the first step, and then once in each interval while steps are made. Nothing depends on
these reports: any error here only ends them, with a note.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.step_pace import StepPace

_POLL_S = 0.5
_FIRST_S = 2.0
"""Every rank has this long to report its own first step; after it the time of the poll is used."""


class TrainingReport:
    """The report of one run of the job, over all attempts in its allocation."""

    def __init__(self, session: Session) -> None:
        self._session = session
        previous = session.job.previous
        earlier = previous.progress if previous is not None else {}
        same_run = previous is not None and previous.restart == session.job.restart_count
        # A supervisor that was started anew goes on with the sums of the one before it.
        lost = [earlier.get(name, 0.0) if same_run else 0.0 for name in ("ckpt", "slow")]
        self._pace = StepPace(*lost)
        self._reached = int(earlier.get("step", -1))
        self._attempt: AttemptState | None = None
        self._start: AttemptStart | None = None
        self._first_s = self._new_s = 0.0
        self._seen: tuple[float, float] | None = None
        """The first poll that saw a step of this attempt, and the step's own time as that poll saw it."""
        self._due_s = 0.0
        self._told: tuple[float, float, int] = (0.0, 0.0, -1)
        """First step, first new step and last step, as they were reported last."""
        self._told_at_s = 0.0
        self._rank = -1
        """The rank whose steps show the pace."""
        self._broken = False
        session.job.progress = self.table

    def begin(self, attempt: AttemptState, start: AttemptStart) -> None:
        """Turn to a new attempt."""
        if self._attempt is not None:
            self._reached = max(self._reached, self._attempt.step if self._attempt.has_progress else -1)
        self._attempt, self._start = attempt, start
        self._first_s, self._new_s, self._seen = 0.0, 0.0, None
        self._rank = -1
        self._pace.restart()

    def table(self) -> Mapping[str, float]:
        """Return the report for the claim that is written now, without unknown values; empty after a fault of ours."""
        if self._broken or self._attempt is None:
            return {}
        try:
            return self._table(self._attempt)
        except Exception as error:  # noqa: BLE001 (a fault of ours in a report must not keep a claim from being written)
            self._fail(error)
            return {}

    def _fail(self, error: Exception) -> None:
        self._broken = True
        text = f"the training's progress is not told to the daemon any more: {error!r}; please report this"
        self._session.folder.log_event("note", text)

    def _table(self, attempt: AttemptState) -> dict[str, float]:
        known = {
            "first": self._first_s,
            "new": self._new_s,
            "last": attempt.last_sign_s if self._first_s else 0.0,
            "ckpt": self._pace.checkpoint_s,
            "slow": self._pace.slow_s,
            "pace": self._pace.usual_s,
            "gpus": float(gpus_in(self._session.environment) * len(self._session.job.nodes)),
        }
        table = {name: round(value, 3) for name, value in known.items() if value > 0}
        step = attempt.step
        self._told = (self._first_s, self._new_s, step)
        self._told_at_s = self._session.clock.monotonic_s()
        # An interval of 0 is passed on, too: then no report is due.
        return {
            **table,
            **({"step": float(step)} if step >= 0 else {}),
            "every": self._session.settings.report_interval_s,
        }

    def poll(self, *, calm: bool) -> None:
        """Observe the attempt, and report news; `calm`: no incident is open, which would be reported anyway."""
        now_s = self._session.clock.monotonic_s()
        if self._broken or now_s < self._due_s:
            return
        self._due_s = now_s + _POLL_S
        try:
            self._poll(now_s, calm=calm)
        except Exception as error:  # noqa: BLE001 (a fault of ours in a report must not end the supervision)
            self._fail(error)

    def _poll(self, now_s: float, *, calm: bool) -> None:
        attempt = self._attempt
        if attempt is None or attempt.step < 0:
            return
        self._note_first(attempt, now_s)
        self._note_new(attempt)
        self._pace.saw(*self._reference(attempt))
        if not calm or not self._first_s:
            return
        every_s, step = self._session.settings.report_interval_s, attempt.step
        news = (self._first_s, self._new_s) != self._told[:2]
        due = every_s > 0 and now_s - self._told_at_s >= every_s and step != self._told[2]
        if news or due:
            self._told = (self._first_s, self._new_s, step)
            self._told_at_s = now_s
            self._session.job.tell_progress()

    def _note_first(self, attempt: AttemptState, now_s: float) -> None:
        if self._first_s:
            return
        exact = attempt.fleet.first_step(-1)
        self._seen = self._seen or (now_s, attempt.last_sign_s)
        if exact is not None:
            self._first_s = exact[1]
        elif not attempt.has_progress or now_s - self._seen[0] >= _FIRST_S:
            self._first_s = self._seen[1]

    def _note_new(self, attempt: AttemptState) -> None:
        """Note when a step was first made that no earlier attempt had made; exact to within a poll."""
        if self._new_s or not self._first_s or self._start is None or self._start.unsure:
            return
        reached = self._start.remembered().reached
        if attempt.has_progress:
            # If no decision ended the attempt before, only its last report shows how far it came. Steps that
            # a rollback has given up on purpose were lost, too.
            reached = max(reached, self._reached)
        exact = attempt.fleet.first_step(reached)
        if exact is not None:
            self._new_s = exact[1]
        elif attempt.step > reached:
            self._new_s = max(self._first_s, attempt.last_sign_s)

    def _reference(self, attempt: AttemptState) -> tuple[int, float, str]:
        """Return step, its time and phase of one rank that stands for all; of the log, if no rank reports."""
        ranks = attempt.fleet.ranks
        known = ranks[self._rank].progress if self._rank in ranks else None
        if known is None:
            # There are thousands of ranks, so search only once.
            self._rank = min((r.rank for r in ranks.values() if r.progress is not None), default=-1)
            known = ranks[self._rank].progress if self._rank in ranks else None
        return (known.step, known.at_s, known.phase) if known is not None else (attempt.step, attempt.last_sign_s, "")


def gpus_in(environment: Mapping[str, str]) -> int:
    """Return the number of GPUs on each node of the job, by Slurm's variable; 0 if it does not tell."""
    text = environment.get("SLURM_GPUS_ON_NODE", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0
