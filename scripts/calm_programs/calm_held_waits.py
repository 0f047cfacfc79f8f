"""Held out: waits for timers, folders, people and storage."""

from __future__ import annotations

import ctypes
import os
import pdb  # noqa: T100 (a program's breakpoint is what is tried)
import signal
import subprocess

from calm_kit import (
    DIR,
    RANK,
    amid_training,
    by_sockets,
    entry,
    nap,
    program,
    say,
    script,
    seconds,
    train,
)


@program(75)
def maintenance_window() -> None:
    """The data service is in maintenance: all ranks sleep for 75 s until their interval timer rings."""
    rung: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    meet = by_sockets()
    train(40, meet)
    signal.setitimer(signal.ITIMER_REAL, max(0.5, seconds(75)))
    while not rung:
        signal.pause()
    train(12, meet)


script(
    "inbox-of-another-job", "held", "All ranks read from inotify until another job puts a file into their folder.", 70,
    "mkdir inbox; (until [ -e waiting-0 ] && [ -e waiting-1 ]; do sleep 1; done; "
    "sleep $(scaled 70); touch inbox/new) &\n"
    "$launch $me watches-its-inbox; wait",
)  # fmt: skip


@entry
def watches_its_inbox() -> None:
    """Train; wait for a new file; train."""
    meet = by_sockets()
    train(30, meet)
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init()
    libc.inotify_add_watch(watch, os.fsencode(DIR / "inbox"), 0x100)  # IN_CREATE
    (DIR / f"waiting-{RANK}").touch()
    os.read(watch, 4096)
    train(12, meet)


script(
    "pdb-on-rank-0", "held",
    "Rank 0 stands at a breakpoint in pdb for a minute: its user looks; the others wait for it.", 60,
    "(until [ -e stopped ]; do sleep 1; done; sleep $(scaled 60); echo 'p 6*7'; echo c) | "
    "$launch --input=0 $me asks-its-user", noise=[r"\(Pdb\)", "^> ", "^-> ", "--Return--"],
)  # fmt: skip


@entry
def asks_its_user() -> None:
    """Train; rank 0 has a breakpoint."""

    def odd() -> None:
        (DIR / "stopped").touch()
        pdb.set_trace()  # noqa: T100 (that is the point)

    amid_training(odd, on=0)


@program(60, tasks=3)
def evaluation_in_a_step_of_its_own() -> None:
    """Rank 0 starts `srun --overlap` within its task for the evaluation; the others wait for rank 0."""

    def odd() -> None:
        words = [
            "srun",
            "--overlap",
            "-N1",
            "-n1",
            "--input=none",
            "sh",
            "-c",
            f"sleep {seconds(60)}; echo accuracy 0.71",
        ]
        subprocess.run(words, check=True)

    amid_training(odd, on=0, meet=by_sockets())


@program(60, noise=["^Traceback", "^  File ", "^    "])
def backoff_after_storage_errors() -> None:
    """All ranks catch errors of a storage and try again after 1, 2, 4, 8, 16 and 32 s, with a traceback each time."""
    import traceback

    meet = by_sockets()
    train(40, meet)
    for number in range(6):
        try:
            error = (5, "Input/output error") if number % 2 else (116, "Stale file handle")
            raise OSError(*error, "/lustre/data/shard-00017.tar")
        except OSError:
            traceback.print_exc()
            say(f"rank {RANK}: attempt {number + 1} of 10 failed, next one in {2**number} s")
            nap(2**number)
    train(12, meet)
