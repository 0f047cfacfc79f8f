"""One reading of all clocks, so that what decides reads none."""

from __future__ import annotations

import time
from typing import NamedTuple


class Moment(NamedTuple):
    """Now.

    Attributes:
        wall_s: Seconds since the epoch; jumps where somebody sets the clock.
        uptime_s: Seconds since boot, those asleep included.
        monotonic_s: For pauses and deadlines.
    """

    wall_s: float
    uptime_s: float
    monotonic_s: float

    @classmethod
    def now(cls) -> Moment:
        """This moment."""
        return cls(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic())

    def of_uptime(self, uptime_s: float) -> float:
        """Seconds since the epoch of a time since boot; nothing is later than now."""
        return self.wall_s - max(0.0, self.uptime_s - uptime_s)
