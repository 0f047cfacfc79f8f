"""A process that waits as something tiny, and has somebody look now and then: what is left of us until a requeue comes.

When a batch script ends, slurmstepd kills what the script has left behind and looks at once whether it is gone; if not,
it looks again a whole second later, and slurmd sees the job's end two seconds late. The kernel tells a child of its
parent's death, by a signal of the child's choice, before it tells slurmstepd. A small shell that gets SIGKILL that way
is gone in time; a Python with its megabytes is not always, and a process with children never.

The shell stays the one that waits: a look that fails, for want of memory, of its file system, or by a fault of ours, is
repeated, and costs neither the wait nor the job. It is told once: whoever removes the package while a requeue is waited
for finds one line in the job's output, and not one for each look.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_robust.model import EXIT_REQUEUE_WANTED

_NAME = "srobust-waits"
NEXT = "next "
"""What the last line that a look prints begins with, before the last argument of the look after it."""
EXIT = "exit "
"""The same before the exit code, where the wait is over."""
_MAX_FAILED = 900
"""Looks in a row that say neither: with a nap between them an hour, in which a file server may come back."""
_SMALL = "/bin/dash"
"""An eighth of bash's size: in 9 of 9 requeues gone in time, where bash was in 7 of 9."""
# It has no `read -t`; the timer that wakes it, again and again, is set before it starts.
_SMALL_NAP = "read -r _"
_LARGER = "/bin/bash"
# -p: no BASH_ENV, no functions or options out of the environment. `read -t` needs no second process.
_LARGER_NAP = 'read -r -t "$pause" _'
_FAILED = "srobust: while its requeue is waited for, the job cannot be looked at (%s); this is tried again, untold"
# The last line that a look prints says how to go on; what stands before it is the story, for who reads the output.
_LOOP = """\
trap : ALRM
trap '' PIPE
pause=$1 most=$2 complaint=$3 state=$4 failed=0
shift 4
newline='
'
while :; do
    {nap}
    said=$(exec "$@" "$state" </dev/null 2>&1)
    last=${{said##*"$newline"}}
    case $last in
        "next "* | "exit "*)
            failed=0
            [ "$last" = "$said" ] || printf '%s\\n' "${{said%"$newline$last"}}" >&2 ;;
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


def become(seconds: float, argv: Sequence[str]) -> int:
    """Become a shell that runs `argv` every so many seconds. Its pid stays, so that whoever waits for us goes on.

    `argv` prints `NEXT` and the last argument of the next run, or `EXIT` and the code to end with. A run that says
    neither is repeated as it was.

    Returns:
        That code, only where there is no shell.
    """
    seconds = max(seconds, _SHORTEST_S)
    _silence()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
    words = [_NAME, f"{seconds:g}", str(_MAX_FAILED), _FAILED, argv[-1], *argv[:-1]]
    try:
        if os.access(_SMALL, os.X_OK):
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
            os.execv(_SMALL, [_NAME, "-c", _LOOP.format(nap=_SMALL_NAP), *words])  # noqa: S606 (our own words)
        os.execv(_LARGER, [_NAME, "-p", "-c", _LOOP.format(nap=_LARGER_NAP), *words])  # noqa: S606 (our own words)
    except OSError:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return _as_we_are(seconds, argv)  # no shell here: larger, and as patient


def _silence() -> None:
    """Have a standard input into which nobody ever writes, and that never ends."""
    silent, end = os.pipe()
    kept = os.open(f"/proc/self/fd/{silent}", os.O_RDWR)  # both ends in one, and nothing else is inherited
    os.dup2(kept, 0)
    for fd in {silent, end, kept} - {0}:
        os.close(fd)


def _as_we_are(seconds: float, argv: Sequence[str]) -> int:
    words, failed = list(argv), 0
    while failed < _MAX_FAILED:
        time.sleep(seconds)
        try:
            out = subprocess.PIPE
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True, check=False
            )
            story, _, last = done.stdout.rstrip("\n").rpartition("\n")
        except (OSError, ValueError) as error:
            story, last = "", str(error)
        failed = 0 if last.startswith((NEXT, EXIT)) else failed + 1
        if failed == 1:
            story = _FAILED % last
        if story and failed <= 1:
            with contextlib.suppress(OSError):
                # Not through sys.stderr: what a closed one could not take would be Python's own exit code at the end.
                os.write(2, f"{story}\n".encode())
        if last.startswith(EXIT):
            return int(last.removeprefix(EXIT))
        if not failed:
            words[-1] = last.removeprefix(NEXT)
    return EXIT_REQUEUE_WANTED
