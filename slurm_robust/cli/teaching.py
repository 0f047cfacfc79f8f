"""Writes the help texts of all commands: examples and exit codes below --help, and what to type after an error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import NoReturn

import click

from slurm_robust.core.model import JobRef
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError, SlurmUnavailableError

SHOWN = ((0, "shown"), (1, "the daemon's state cannot be read; the message says what to check"), (2, "wrong usage"))
"""The exit codes of all commands that show the daemon's state."""


def lesson(examples: Iterable[tuple[str, str]], exits: Iterable[tuple[int | str, str]]) -> str:
    """Return the end of a --help: what to type and what that does, then the exit codes; as click's `epilog`."""
    shown, codes = list(examples), [(str(code), meaning) for code, meaning in exits]
    wide = max((len(typed) for typed, _ in shown), default=0)
    lines = ["\b", "Examples:", *(f"  {typed:<{wide}}  {does}".rstrip() for typed, does in shown)]
    wide = max((len(code) for code, _ in codes), default=0)
    lines += ["", "\b", "Exit codes:", *(f"  {code:<{wide}}  {meaning}" for code, meaning in codes)]
    return "\n".join(lines)


def fail(name: str, message: str) -> NoReturn:
    """End `srobust NAME` with exit code 3: the job cannot be examined."""
    click.echo(f"srobust {name}: {message}", err=True)
    sys.exit(3)


@contextlib.contextmanager
def failing(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Show Slurm's errors and these as `fail` does, and a word that is not a job id as wrong usage."""
    try:
        yield
    except SlurmError as error:
        fail(name, slurm_words(error))
    except errors as error:
        fail(name, str(error))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def not_running(job_id: str, state: str | None) -> str:
    """Return why this job cannot be examined, and what to do instead; `state` is None for a job that is unknown."""
    if state is None:
        whose = "or it is another user's and hidden (PrivateData=jobs): then its owner or root types this"
        return f"job {job_id} is not known to Slurm (any more), {whose}; see: squeue --me, srobust incidents {job_id}"
    if state in ("PENDING", "CONFIGURING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_HOLD", "RESIZING"):
        return f"job {job_id} is {state}, not RUNNING; see: squeue -j {job_id}"
    return (
        f"job {job_id} is {state}, not RUNNING; its history: srobust incidents {job_id}, and the folder "
        f"slurm-robust-{job_id} beside its output"
    )


def slurm_words(error: SlurmError) -> str:
    """Slurm's own message, and what to type if Slurm was not reachable."""
    if not isinstance(error, SlurmUnavailableError):
        return str(error)
    # The last line names the cause; those before it lead up to it.
    last = error.text.splitlines()[-1].strip() if error.text else ""
    message = f": {last.rpartition('fatal: ')[2]}" if last else ""
    return (
        f"Slurm cannot be reached ({error.what}){message}\n"
        "Check: scontrol ping. Is this a machine of the cluster, with its /etc/slurm/slurm.conf or SLURM_CONF? "
        'To try it without a cluster: srobust devcluster up; eval "$(srobust devcluster env)"'
    )


def own_job() -> str | None:
    """Return the id of the job in which this is typed, which is said; None outside of any."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return None
    click.echo(f"of job {job}, in which this was typed (SLURM_JOB_ID)", err=True)
    return job


def why_waits(client: SlurmClient, job: str) -> str:
    """Return Slurm's reason why this job waits, to stand behind a sentence; empty if it has none."""
    try:
        found = client.job(JobRef.parse(job))
    except SlurmError:
        return ""
    return f" ({found.reason})" if found is not None and found.reason not in ("", "None") else ""
