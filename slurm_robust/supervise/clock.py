"""The clock of the supervisor's parts; a test replaces it."""

from __future__ import annotations

import asyncio

from slurm_robust.supervise.agent.clock import SystemClock


class Clock(SystemClock):
    """The clocks of this machine, and asyncio's sleep."""

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for this long."""
        await asyncio.sleep(seconds)


CLOCK = Clock()
"""The default wherever a clock is a parameter."""
