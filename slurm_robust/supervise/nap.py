"""A process that waits as something tiny, and becomes itself again: what is left of us while a requeue is on its way.

When a batch script ends, slurmstepd kills what the script has left behind and looks at once whether it is gone; if not,
it looks again a whole second later, and slurmd sees the job's end two seconds late. The kernel tells a child of its
parent's death, by a signal of the child's choice, before it tells slurmstepd. A small shell that gets SIGKILL that way
is gone in time; a Python with its megabytes is not always, and a process with children never.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

_NAME = "srobust-waits"
_SMALL = "/bin/dash"
"""An eighth of bash's size: in 9 of 9 requeues gone in time, where bash was in 7 of 9."""
# It has no `read -t`; the timer that wakes it is set before it starts.
_ON = 'exec "$@"'
_SMALL_WAIT = f"trap '{_ON}' ALRM; read -r _; {_ON}"
_LARGER = "/bin/bash"
# -p: no BASH_ENV, no functions or options out of the environment. `read -t` needs no second process.
_LARGER_WAIT = f'read -r -t "$1" _; shift; {_ON}'
_SHORTEST_S = 0.5
"""Time for the small shell to set its trap."""
_PR_SET_PDEATHSIG = 1


def _parent_of(pid: int) -> int:
    try:
        # The command may hold spaces and brackets: it ends at the last one.
        return int(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def is_batch_script(pid: int) -> bool:
    """True where a process is a step's own: a child of slurmstepd."""
    try:
        return Path(f"/proc/{_parent_of(pid)}/comm").read_text("utf-8", "replace").startswith("slurmstepd")
    except OSError:
        return False


def die_with_parent(parent: int) -> None:
    """Be killed when the process that started us ends, from now on and across exec.

    Args:
        parent: Our parent as it was when we started; where it has ended since, we end now.
    """
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError):
        return  # it then waits as well, and only dies a second later
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def nap(seconds: float, argv: Sequence[str]) -> None:
    """Become a shell that waits so long, and then `argv`. Its pid stays, so that whoever waits for us goes on waiting.

    Returns only where `argv` cannot be started.
    """
    seconds = max(seconds, _SHORTEST_S)
    silent, kept = os.pipe()
    os.dup2(silent, 0)  # nobody will ever write into it
    os.close(silent)
    os.set_inheritable(kept, True)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
    try:
        if os.access(_SMALL, os.X_OK):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            os.execv(_SMALL, [_NAME, "-c", _SMALL_WAIT, _NAME, *argv])  # noqa: S606 (our own words)
        os.execv(_LARGER, [_NAME, "-p", "-c", _LARGER_WAIT, _NAME, f"{seconds:g}", *argv])  # noqa: S606 (our own words)
    except OSError:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        time.sleep(seconds)  # no shell here: larger, and as patient
    try:
        os.execv(argv[0], list(argv))  # noqa: S606 (our own words)
    except OSError:
        os.close(kept)
