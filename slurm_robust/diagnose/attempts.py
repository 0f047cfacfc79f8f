"""Tells the attempts of one job apart in its output: by our own lines, and by Slurm's word that the job is requeued."""

from __future__ import annotations

import re

from slurm_robust.diagnose.lines import OURS

_WE_END = re.compile(r"srobust: [\d:]{8} (?:restart|spare|seat|requeue|plain|owner|test|stop)[a-z_ ]*: ")
_RELAUNCHED = re.compile(r"srobust: [\d:]{8} .{0,40} for the training step;")
_TRAINS = re.compile(r"srobust: [\d:]{8} training at step ")
"""Between a line of the first kind and one of the others, it is we who end ranks; a job that tells no step prints no
line of the last kind, so what others print after these ends begins again, too."""
_VERIFIED = re.compile(r"srobust: [\d:]{8} step \d+ is verified: ")
_REQUEUED = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+ DUE TO (?:JOB REQUEUE|NODE FAILURE|PREEMPTION)")
ENDS = ("srun: ", "slurmstepd")
"""What Slurm says of ends begins so."""
MARKS_OF_ATTEMPTS = ("srobust: ", "DUE TO JOB REQUEUE", "DUE TO NODE FAILURE", "DUE TO PREEMPTION")
"""One of these is in each line that tells attempts apart."""


class AttemptCount:
    """Counts the attempts in the lines of one stream, as they are read.

    After a requeue the ranks of the old attempt may still print, so only a line of ours shows that a new one has begun.

    Attributes:
        number: Of the attempt that the last line belongs to; the first is 0.
        since: The number of the line after which this attempt's own stand, where only the last line has shown that it
            began; else None.
    """

    def __init__(self) -> None:
        self.number = 0
        self.since: int | None = None
        self._we_end = self._ended = False
        self._requeued_at: int | None = None
        """The line with which Slurm took the job back, until it is seen that it runs again."""

    def takes(self, bare: str, number: int) -> bool:
        """Whether a line is ours, or only tells of an end that we wanted: no finding may be in it.

        `bare` is the line without the labels that launchers put before.
        """
        self.since = None
        if OURS.match(bare):  # it quotes what others have printed
            self._read_ours(bare)
            return True
        if "DUE TO " in bare and _REQUEUED.search(bare):
            self._requeued_at = number
        if self._we_end and bare.startswith(ENDS):
            self._ended = True
            return True
        if bare.strip():
            self._we_end = self._we_end and not self._ended
        return False

    def _read_ours(self, bare: str) -> None:
        we_end, relaunched = _WE_END.match(bare) is not None, _RELAUNCHED.match(bare) is not None
        trains = _TRAINS.match(bare) is not None
        since = self._requeued_at
        if relaunched or (since is not None and (we_end or trains or _VERIFIED.match(bare))):
            self.number += 1
            self._requeued_at = None
        if we_end:
            # It ended before it said that it began: what was printed since the requeue is its own.
            self._we_end, self._ended, self.since = True, False, since
        elif relaunched or trains:
            self._we_end = False
