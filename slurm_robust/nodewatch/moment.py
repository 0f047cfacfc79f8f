"""Reads all clocks once, so that what decides reads no clock."""

from __future__ import annotations

import math
import time
from typing import NamedTuple


class Moment(NamedTuple):
    """Now.

    Attributes:
        wall_s: Seconds since the epoch; jumps if somebody sets the clock.
        uptime_s: Seconds since boot, including time asleep.
        monotonic_s: For pauses and deadlines.
        since_s: New records are not older than this, in seconds since the epoch.
    """

    wall_s: float
    uptime_s: float
    monotonic_s: float
    since_s: float = -math.inf

    @classmethod
    def now(cls) -> Moment:
        """Read all clocks."""
        return cls(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic())

    def of_uptime(self, uptime_s: float) -> float:
        """Seconds since the epoch of a time since boot."""
        return self.bounded(self.wall_s - (self.uptime_s - uptime_s))

    def bounded(self, wall_s: float) -> float:
        """Return a log's time, limited to times that can be true: from the last reading until now."""
        return min(self.wall_s, max(self.since_s, wall_s))
