"""Tells whether srun refused its own command line: then nothing has run, and there is nothing to recover."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping, Sequence

REFUSED = 255
"""srun's exit code if it does not accept its options. A program may end with this code, too."""
_PATIENCE_S = 10.0


async def refusal(options: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return srun's message about options that it refuses; empty if it accepts them, or does not answer.

    Run `srun OPTION… --version`, with which srun reads all options but starts nothing. srun's first message cannot be
    read again: it may have gone to a terminal, or through a pipe.
    """
    try:
        srun = await asyncio.to_thread(
            subprocess.run,
            ["srun", *options, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=dict(environment),
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if srun.returncode != REFUSED:
        return ""
    lines = srun.stderr.splitlines()
    return lines[0].strip()[:300] if lines else f"exit code {REFUSED}"
