"""Notices that the clock was set back, and restarts every timer: one whose end lies far ahead would never end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slurm_robust.daemon.context import DaemonContext

SLEW_S = 1.0
"""A clock that goes back by less than this is only being slewed."""


class Timed(Protocol):
    """A part of the daemon that has timers."""

    def restart_timers(self) -> None:
        """The clock was set back: nothing that is remembered may lie in the future."""


class ClockWatch:
    """Remembers the time of the last poll."""

    def __init__(self, context: DaemonContext, journal_times: Timed, parts: Sequence[Timed]) -> None:
        """`journal_times` has times in the journal, `parts` have theirs in memory only."""
        self.context, self._journal_times, self._parts = context, journal_times, parts
        self._last_s = 0.0

    def tick(self) -> None:
        """Before each poll. A clock that is set forward only shortens waits, which needs no correction."""
        now_s, last_s = self.context.now_s(), self._last_s
        self._last_s = now_s
        if not last_s:
            # The clock may have been set back while no daemon ran: only the journal's times can lie in the future then.
            self._journal_times.restart_timers()
        elif now_s <= last_s - SLEW_S:
            text = f"the clock was set back by {last_s - now_s:.0f} s; every timer is restarted"
            self.context.alert("clock.back", text)
            self.context.readings.expire()
            for part in (self._journal_times, *self._parts):
                part.restart_timers()
