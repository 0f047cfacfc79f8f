"""Runs a site's own command on the daemon's machine: without a shell, with a deadline, in its own process group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from slurm_robust.slurm.errors import SlurmError

MAX_OUTPUT_CHARS = 200


class SiteCommandError(SlurmError):
    """The command could not be started, took too long, or exited with another code than 0; says which."""


async def run_command(argv: list[str], timeout_s: float) -> None:
    """Run it to its end; when it takes too long, or this daemon stops, its whole process group is killed.

    Raises:
        SiteCommandError: it did not exit with 0 in that time.
    """
    name = os.path.basename(argv[0])  # noqa: PTH119 (a word, not a path of ours)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise SiteCommandError(f"{name} could not be started: {error.strerror}") from None
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    except asyncio.TimeoutError:
        raise SiteCommandError(f"{name} did not end within {timeout_s:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = " ".join(output.decode(errors="replace").split())[-MAX_OUTPUT_CHARS:]
        raise SiteCommandError(f"{name} exited with {process.returncode}{': ' if last else ''}{last}")
