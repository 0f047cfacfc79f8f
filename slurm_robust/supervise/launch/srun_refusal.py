"""Did srun refuse its own command line? Then nothing has run, nobody has died, and there is nothing to recover from."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

REFUSED = 255
"""srun's exit code where it does not take its options. A program may end with it too."""
_PATIENCE_S = 10.0


async def refusal(options: Sequence[str], environment: Mapping[str, str]) -> str:
    """What srun says of options that it does not take; empty where it takes them, or does not answer.

    It is asked for its version behind the same options: it reads all of them, and starts nothing. What it said the
    first time may have gone anywhere: to a terminal, or through a pipe.
    """
    try:
        srun = await asyncio.create_subprocess_exec(
            "srun",
            *options,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
        )
    except OSError:
        return ""
    try:
        _, said = await asyncio.wait_for(srun.communicate(), _PATIENCE_S)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            srun.kill()
        await srun.wait()
        return ""
    if srun.returncode != REFUSED:
        return ""
    lines = said.decode("utf-8", "replace").splitlines()
    return lines[0].strip()[:300] if lines else f"exit code {REFUSED}"
