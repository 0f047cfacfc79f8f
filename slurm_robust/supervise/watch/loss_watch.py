"""Does a training go on with a loss that is bad for good? Each finding is returned or announced once an attempt."""

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
        """Why the loss is lost, as a sentence, once; empty else.

        A spike is only announced, and so is a loss that no rank has ever had a finite one of, also in earlier attempts
        (`had_finite`): the program may print NaN by design.
        """
        found = reported(self._attempt.fleet)
        if found is None:
            return ""
        if found.telling and not self._telling:
            # Another rank is listened to from now on.
            self._telling, self._trend, self._lost = True, LossTrend(), False
        # Many programs give a loss now and then only: the steps in between show the last one again.
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
