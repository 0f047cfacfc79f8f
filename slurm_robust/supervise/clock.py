"""Where the supervisor's parts take their time from: one clock, which a test replaces."""

import asyncio
import time


class Clock:
    """The machine's own clocks."""

    def now_s(self) -> float:
        """Seconds since the epoch; may jump when the machine's clock is set."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never jumps."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for this long."""
        await asyncio.sleep(seconds)
