"""Reads the machine's clocks, for all of `supervise`: other modules take a clock as an argument, which tests replace.

It is separate from `supervise.clock`, which adds a sleep for asyncio: agents and the launcher do not load asyncio.
"""

from __future__ import annotations

import time


class SystemClock:
    """The clocks of this machine."""

    def now_s(self) -> float:
        """Return seconds since the epoch; may jump when the machine's clock is set."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; never jumps."""
        return time.monotonic()

    def since_boot_s(self) -> float:
        """Return seconds since the machine was booted, as the start times in /proc count them."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def worked_s(self) -> float:
        """Return seconds of processor time that this thread has used; waiting does not count."""
        return time.thread_time()

    def pause(self, seconds: float) -> None:
        """Block this thread for so long."""
        time.sleep(seconds)


CLOCK = SystemClock()
"""The default wherever a clock is a parameter."""
