"""Gives the supervisor's parts the time; tests replace it."""

from __future__ import annotations

import asyncio

from slurm_robust.supervise.agent.clock import SystemClock

_CATCH_UP = 0.1
"""A time of day that was set is approached by this share of the time that passes."""
_STOPPED_S = 10.0
"""If a sleep ends this long after its time, and no work was done, this process itself was stopped."""
_WORK_SHARE = 0.1


class Clock(SystemClock):
    """The clocks of this machine, and asyncio's sleep.

    Its time of day never jumps: if the machine's clock is set by 40 minutes, the job has not been silent for so long.

    Attributes:
        stopped_s: For how many seconds this process was stopped in all. `scontrol suspend` stops it with its job, while
            the clocks go on.
    """

    stopped_s = 0.0
    _awake_s = 0.0

    def __init__(self) -> None:
        self._offset_s: float | None = None
        """The difference from the monotonic clock to the time of day; None before the first reading."""
        self._seen_s = 0.0

    def now_s(self) -> float:
        """Return seconds since the epoch; between two calls they grow by the passed time, a tenth more or less."""
        now_s = self.monotonic_s()
        offset_s = super().now_s() - now_s
        if self._offset_s is not None:
            most_s = _CATCH_UP * (now_s - self._seen_s)
            offset_s = self._offset_s + max(-most_s, min(offset_s - self._offset_s, most_s))
        self._offset_s, self._seen_s = offset_s, now_s
        return now_s + offset_s

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for this long."""
        due_s, worked_s = self.monotonic_s() + seconds, self.worked_s()
        await asyncio.sleep(seconds)
        now_s = self.monotonic_s()
        # Of several tasks that sleep, the first to wake counts the time.
        late_s = now_s - max(due_s, self._awake_s)
        # On a busy machine a task is late because others work, and that takes processor time.
        if late_s > _STOPPED_S and self.worked_s() - worked_s < _WORK_SHARE * late_s:
            self.stopped_s += late_s
        self._awake_s = now_s


CLOCK = Clock()
"""The default wherever a clock is a parameter."""
