"""Tells whether a training goes on with a loss that is bad for good; each finding is returned once in an attempt."""

from __future__ import annotations

from slurm_robust.policy.job.live_loss import LossTrend
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.losses import reported


class LossWatch:
    """Watches the losses that the ranks of one attempt report."""

    def __init__(self, session: Session, attempt: AttemptState) -> None:
        self._session = session
        self._attempt = attempt
        self._trend = LossTrend()
        self._call = -1
        self._lost = self._announced = self._telling = False

    def poll(self, *, had_finite: bool = False) -> str:
        """Return why the loss is lost, as a sentence, once; else an empty text.

        A spike is only announced. A loss that has never been finite, neither on any rank nor in earlier attempts
        (`had_finite`), is only announced, too: the program may print NaN by design.
        """
        found = reported(self._attempt.fleet)
        if found is None:
            return ""
        if found.telling and not self._telling:
            # From now on the loss of another rank is read.
            self._telling, self._trend, self._lost = True, LossTrend(), False
        # Many programs only give a loss now and then: the steps in between show the last loss again.
        if found.loss is not None and found.call != self._call:
            self._call = found.call
            self._trend.take(found.step, found.loss)
        if not self._announced and (spike := self._trend.spike):
            self._announced = True
            text = f"{spike}; nothing is done about a spike while the training goes on"
            self._session.folder.log_event("loss", text, step=found.step)
        if self._lost or not self._trend.lost:
            return ""
        self._lost = True
        if not found.telling and not had_finite:
            text = f"{self._trend.lost}; no rank has reported a finite loss before, so nothing is done about it"
            self._session.folder.log_event("loss", text, step=found.step)
            return ""
        return self._trend.lost
