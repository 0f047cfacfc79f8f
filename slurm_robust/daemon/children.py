"""Ends a child of the daemon that reads its standard input."""

from __future__ import annotations

import asyncio

LAST_S = 3.0
"""A child that has not ended this long after its input did is killed."""


async def end(process: asyncio.subprocess.Process) -> None:
    """Close the input of a child that runs, and wait for its end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), LAST_S)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
