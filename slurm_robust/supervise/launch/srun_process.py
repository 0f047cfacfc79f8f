"""Starts the user's own srun with our stdin, stdout and stderr; from then on the launcher takes all signals."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_robust.supervise.launch import messages

WAKE = signal.SIGRTMIN + 1
"""Wakes the launcher's loop: a message of the supervisor has arrived."""
FORWARDED = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT})
TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP})
"""A terminal sends these to the whole group, srun included: forwarding them would deliver them twice."""
WATCHED = frozenset({signal.SIGCHLD, WAKE} | FORWARDED | TERMINAL)


def block_signals() -> Collection[signal.Signals | int]:
    """Block the signals that the launcher waits for; return the signals blocked before, for its children."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)


def environment(order: messages.LaunchSrun | messages.StartWarm) -> dict[str, str]:
    """Return the environment of an srun: ours, changed as the supervisor ordered."""
    return {**{k: v for k, v in os.environ.items() if k not in order.unset}, **order.env}


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    mask: Collection[signal.Signals | int],
    *,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start srun, with these signals blocked; `stderr` is a descriptor, ours by default.

    Raises:
        OSError: srun cannot be started.
    """
    return subprocess.Popen(
        argv,
        env=env,
        stderr=stderr,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask) and None,  # noqa: PLW1509 (in the child)
    )


def exit_code(returned: int) -> int:
    """Return the exit code that a shell would give for a process that returned this, or was killed by a signal."""
    return returned if returned >= 0 else 128 - returned


def failed_text(argv: Sequence[str], error: OSError) -> str:
    """Return why srun did not start, and what to look at."""
    return f"srobust: {argv[0]}: {error.strerror}; is Slurm installed on this node?\n"


def failed_code(error: OSError) -> int:
    """Return the exit code that a shell gives if a command cannot be started."""
    return 127 if isinstance(error, FileNotFoundError) else 126
