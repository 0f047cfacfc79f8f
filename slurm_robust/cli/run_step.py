"""Prepares `srobust run` before the user's srun starts, without loading click and most else."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.config import file as config_file
from slurm_robust.supervise.launch import early_launch, options, srun_command, srun_process

if TYPE_CHECKING:
    from slurm_robust.config.site import Config
    from slurm_robust.supervise.launch.early_launch import EarlySrun
    from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock

_EXIT_USAGE = 64
"""The value of `model.EXIT_USAGE`, which is not loaded here."""
READY = "--robust-ready"
"""`srobust run --robust-ready` starts nothing: it shows a wrapper of srun that a run would find what it loads."""
EXIT_NO_SRUN = 127
"""The exit code of a shell for a command that does not exist."""


def run(words: Sequence[str]) -> int:
    """Run the command under supervision, or under plain srun with a sentence why; returns the exit code."""
    if list(words) == [READY]:
        importlib.import_module("slurm_robust.supervise.launch.launcher")
        return 0
    try:
        parsed = srun_command.parse(words)
        own = options.read(parsed.own, os.environ)
        outside = _leaves_the_step(parsed.command)
        _check_code(own.code)
    except srun_command.UsageError as error:
        sys.stderr.write(f"srobust run: {error}\n\n{options.USAGE}")
        return _EXIT_USAGE
    config, problem, ours = _config(own.config)
    if problem and not ours:
        sys.stderr.write(f"srobust run: {problem}\n")
        return _EXIT_USAGE
    for mistake in options.mistakes(parsed.own, os.environ):
        sys.stderr.write(f"srobust: {mistake}\n")
    if own.off:
        os.environ["SROBUST_MODE"] = "off"  # otherwise the SPANK plugin would watch this srun by sbatch's options
    het = "SLURM_HET_SIZE" in os.environ
    if own.off or problem or outside or het or not os.environ.get("SLURM_JOB_ID"):
        why = "" if own.off else _why_unsupervised(outside, problem, het=het)
        if why:
            sys.stderr.write(f"{why}\n")
        return _become_srun(parsed)
    lock = early_launch.lock_of(os.environ)
    launch = early_launch.try_prepare(parsed, own, dict(os.environ), config, lock)
    try:
        early = early_launch.start(launch, os.environ) if launch is not None else None
    except OSError as error:
        sys.stderr.write(srun_process.failed_text(["srun"], error))
        return srun_process.failed_code(error)
    return _supervise(parsed, words, early, lock)


def _supervise(
    parsed: srun_command.SrunCommand, words: Sequence[str], early: EarlySrun | None, lock: SupervisorLock | None
) -> int:
    # srun runs already: imports from here on delay no job.
    try:
        from slurm_robust.supervise.launch.launcher import Launcher  # noqa: PLC0415
    except Exception as error:  # noqa: BLE001 (files that are being replaced, say: the command runs all the same)
        sys.stderr.write(f"srobust: not supervised: {type(error).__name__}: {error}\n")
        return srun_process.exit_code(early.srun.wait()) if early is not None else _become_srun(parsed)
    lock_fd = lock.fd if lock is not None else -1
    supervisor = [sys.executable, "-m", "slurm_robust.supervise", "{fd}", str(lock_fd), *words]
    inherited = [lock_fd] if lock_fd >= 0 else []
    return Launcher(srun_command.plain(parsed), supervisor, early=early, inherited=inherited).run()


def _config(named: str) -> tuple[Config | None, str, bool]:
    """Return the site's configuration (None without a file), what is wrong with the file, and whether it is the site's.

    A wrong file of the site must not keep a job from starting. A file that the user named, with the option or
    `$SROBUST_CONFIG`, is the user's to mend.
    """
    if config_file.find(named) is None:
        return None, "", True
    try:
        from slurm_robust.config import site  # noqa: PLC0415 (srun waits for it, if there is a file)
    except ImportError as error:
        return None, f"this installation is not whole ({error})", True
    try:
        return site.load(named), "", True
    except site.ConfigError as error:
        return None, str(error), not (named or os.environ.get("SROBUST_CONFIG"))


def _check_code(folder: str) -> None:
    """Refuse a wrong folder before anything is started; a job that was requeued keeps the version that it has.

    Raises:
        UsageError: it is no folder.
    """
    if folder and not Path(folder).is_dir() and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        raise srun_command.UsageError(f"--robust-code={folder[:80]}: there is no such folder")


def _leaves_the_step(command: Sequence[str]) -> str:
    if not any("deepspeed" in word for word in command):
        return ""
    from slurm_robust.supervise.launch import other_restarters  # noqa: PLC0415 (it has many patterns)

    return other_restarters.leaves_the_step(command)


def _why_unsupervised(outside: str, problem: str, *, het: bool) -> str:
    if outside:
        return f"srobust run: {outside}. Until then it runs under plain srun, unsupervised"
    if het:
        return "srobust: heterogeneous jobs are not supervised: the command runs under plain srun"
    if problem:
        return f"srobust: {problem}; the command runs under plain srun, unsupervised. Tell your administrators"
    return (
        "srobust: not inside an allocation: the command runs under plain srun, unsupervised; use srobust run in an "
        "sbatch file or inside salloc"
    )


def _become_srun(command: srun_command.SrunCommand) -> int:
    """Become the user's own srun; returns only if there is none."""
    try:
        os.execvp("srun", srun_command.plain(command))  # noqa: S606 (the user's own command)
    except OSError as error:
        sys.stderr.write(
            f"srobust run: srun cannot be started: {error.strerror}; install Slurm's commands, or put their folder on "
            "PATH\n"
        )
    return EXIT_NO_SRUN
