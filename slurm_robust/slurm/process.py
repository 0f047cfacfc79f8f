"""Runs one child process with a deadline; it and all its children have ended when the call returns."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import string
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_robust.slurm.errors import SlurmMissingError, SlurmTimeoutError

KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
"""The variables that name Slurm's location and our identity; other variables of Slurm change what its commands do."""

SCRUBBED = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SACCT_")


@dataclass(frozen=True)
class Finished:
    """A child that ended by itself. `code` is negative if a signal ended it."""

    code: int
    out: str
    err: str


def scrubbed(environ: Mapping[str, str], conf: str = "") -> dict[str, str]:
    """Return the environment without the variables that a surrounding job set for its own steps.

    Inside a job, `SLURM_CLUSTERS`, `SQUEUE_FORMAT` or `SBATCH_RESERVATION` would turn a command into another one.
    """
    kept = {key: value for key, value in environ.items() if key in KEPT or not key.startswith(SCRUBBED)}
    if conf:
        kept["SLURM_CONF"] = conf
    return kept


def run(argv: list[str], *, timeout_s: float, env: Mapping[str, str], stdin: str = "") -> Finished:
    """Run a command to its end, in a process group of its own.

    Output that is not UTF-8 gets replacement characters: it contains texts of job owners.

    Raises:
        SlurmMissingError: there is no such command, or it cannot be executed.
        SlurmTimeoutError: it ran past the deadline; the whole group was killed. `text` has its output until then.
    """
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        raise SlurmMissingError(
            f"cannot run {argv[0]}; install Slurm's commands, or set slurm.bin_dir in robust.yaml to their folder",
            str(error),
        ) from None
    try:
        out, err = child.communicate(stdin.encode("utf-8", "surrogateescape"), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill_group(child)
        out, err = _rest(child)
        raise SlurmTimeoutError(
            f"{' '.join(argv[:3])} did not return within {timeout_s:g} s; check slurmctld: scontrol ping",
            (err or out).decode("utf-8", "replace"),
        ) from None
    except BaseException:
        _kill_group(child)
        child.wait()
        raise
    return Finished(child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _rest(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    try:
        return child.communicate(timeout=1.0)
    except subprocess.TimeoutExpired as late:
        # A grandchild in a group of its own holds the pipes: its output is not awaited.
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        child.wait()
        return late.output or b"", late.stderr or b""


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    # The leader is not reaped yet, so its pid cannot belong to another process.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def separator() -> str:
    """Return a text that no user can have written into a field: it is new for each call."""
    # 16 of 52 letters, about 91 bits. Letters only: squeue reads leading digits as a field's width.
    return "".join(secrets.choice(string.ascii_letters) for _ in range(16))
