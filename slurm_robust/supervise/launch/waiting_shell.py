"""Replaces the launcher by a small shell that runs a poll every few seconds until the requeue comes.

When a batch script ends, slurmstepd kills the remaining processes and checks at once whether they have ended. If not,
it checks again a whole second later, and slurmd sees the job's end two seconds late. The kernel signals a parent's
death to its child, with a signal of the child's choice, before it reports the death to slurmstepd. A small shell that
gets SIGKILL that way ends in time; a Python with its megabytes does not always, and a process with children never does.

If a poll fails, for lack of memory or of its file system, or by a fault of ours, the shell repeats the poll. It reports
failures once: if the package is removed meanwhile, the job's output gets one line, and not one for each poll.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence

from slurm_robust.core.model import EXIT_REQUEUE_WANTED
from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.clock import CLOCK

_NAME = "srobust-waits"
NEXT = "next "
"""Begins the last line that a poll prints, before the last argument of the next poll."""
EXIT = "exit "
"""Begins the line with the exit code, if the wait is over."""
_MAX_FAILED = 900
"""Polls in a row that print neither: about an hour, in which a file server may come back."""
_SMALL = "/bin/dash"
"""A shell of an eighth of bash's size: it ended in time in 9 of 9 requeues, bash in 7 of 9."""
# dash has no `read -t`: an interval timer, set before it starts, wakes it.
_SMALL_PAUSE = "read -r _"
_LARGER = "/bin/bash"
# -p: no BASH_ENV, functions or options from the environment. `read -t` needs no second process.
_LARGER_PAUSE = 'read -r -t "$pause" _'
_FAILED = "srobust: cannot poll the job while waiting for its requeue (%s); trying again without further notes"
# The last line that a poll prints says how to continue; the lines before it are messages for the job's output.
_LOOP = """\
trap : ALRM
trap '' PIPE
pause=$1 most=$2 complaint=$3 state=$4 failed=0
shift 4
newline='
'
while :; do
    {wait}
    output=$(exec "$@" "$state" </dev/null 2>&1)
    last=${{output##*"$newline"}}
    case $last in
        "next "* | "exit "*)
            failed=0
            [ "$last" = "$output" ] || printf '%s\\n' "${{output%"$newline$last"}}" >&2 ;;
    esac
    case $last in
        "next "*) state=${{last#next }} ;;
        "exit "*) exit "${{last#exit }}" ;;
        *)
            failed=$((failed + 1))
            [ "$failed" -gt 1 ] || printf "$complaint\\n" "$last" >&2
            [ "$failed" -lt "$most" ] || exit 75 ;;
    esac
done
"""
_SHORTEST_S = 0.5
"""Time for the small shell to set its trap."""
_PR_SET_PDEATHSIG = 1


def is_batch_script(pid: int) -> bool:
    """Return whether a process is a step's task: a child of slurmstepd."""
    found = procfs.stat(pid)
    parent = procfs.stat(found.ppid) if found is not None else None
    return parent is not None and parent.command.startswith("slurmstepd")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill us when our parent ends, from now on and across exec.

    If our parent has already ended, end now.
    """
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError):
        return  # the wait works all the same, and only ends a second later
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become(seconds: float, argv: Sequence[str]) -> int:
    """Become a shell that runs `argv` every so many seconds, with our pid, for which the batch script waits.

    `argv` prints `NEXT` and the last argument of the next run, or `EXIT` and the code to end with. A run that prints
    neither is repeated unchanged.

    Returns:
        That code; only if there is no shell.
    """
    seconds = max(seconds, _SHORTEST_S)
    _silence()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
    words = [_NAME, f"{seconds:g}", str(_MAX_FAILED), _FAILED, argv[-1], *argv[:-1]]
    try:
        if os.access(_SMALL, os.X_OK):
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
            os.execv(_SMALL, [_NAME, "-c", _LOOP.format(wait=_SMALL_PAUSE), *words])  # noqa: S606 (our own text)
        os.execv(_LARGER, [_NAME, "-p", "-c", _LOOP.format(wait=_LARGER_PAUSE), *words])  # noqa: S606 (our own text)
    except OSError:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return _poll_in_python(seconds, argv)  # there is no shell: larger, and as patient


def _silence() -> None:
    """Get a standard input that has no data and never ends."""
    silent, end = os.pipe()
    kept = os.open(f"/proc/self/fd/{silent}", os.O_RDWR)  # both ends in one, and nothing else is inherited
    os.dup2(kept, 0)
    for fd in {silent, end, kept} - {0}:
        os.close(fd)


def _poll_in_python(seconds: float, argv: Sequence[str]) -> int:
    argv, failed = list(argv), 0
    while failed < _MAX_FAILED:
        CLOCK.pause(seconds)
        try:
            out = subprocess.PIPE
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True, check=False
            )
            messages, _, last = done.stdout.rstrip("\n").rpartition("\n")
        except (OSError, ValueError) as error:
            messages, last = "", str(error)
        failed = 0 if last.startswith((NEXT, EXIT)) else failed + 1
        if failed == 1:
            messages = _FAILED % last
        if messages and failed <= 1:
            with contextlib.suppress(OSError):
                # Not through sys.stderr: if it is closed, Python would exit with a code of its own.
                os.write(2, f"{messages}\n".encode())
        if last.startswith(EXIT):
            return int(last.removeprefix(EXIT))
        if not failed:
            argv[-1] = last.removeprefix(NEXT)
    return EXIT_REQUEUE_WANTED
