"""Held out: processes that hide, change, are copied or are held for a while."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from calm_kit import (
    DIR,
    LAUNCH,
    RANK,
    SIZE,
    TRACEBACK,
    amid_training,
    by_sockets,
    by_torch,
    entry,
    nap,
    program,
    say,
    script,
    seconds,
    train,
    until,
)


@program(60)
def detached_trainer() -> None:
    """Each task forks twice: the training is a daemon with its own session, nobody's child; the task only waits."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        try:
            meet = by_sockets()
            train(20, meet)
            if RANK == 1:
                nap(60)
            train(8, meet)
            os.write(writing, b"0")
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(writing)
    os.wait()
    sys.exit(int(os.read(reading, 1) or b"1"))


script(
    "exec-chain", "held",
    "bash becomes python, which becomes bash, which becomes python, each with another title; then a pause.", 50,
    "$launch $mark bash -c \"exec -a 'trainer: warming up' $me exec-chain-middle\"",
)  # fmt: skip


@entry
def exec_chain_middle() -> None:
    """Become a shell that becomes the last program of the chain."""
    real = os.path.realpath("/proc/self/exe")  # sys.executable is guessed from the title
    line = f"exec -a '[kworker/0:2-events]' {real} {Path(__file__).parent} exec-chain-end"
    os.execvp("bash", ["-bash", "-c", line])


@entry
def exec_chain_end() -> None:
    """Take one more name, and train."""
    ctypes.CDLL(None).prctl(15, b"ray::Trainer", 0, 0, 0)
    amid_training(lambda: nap(50), meet=by_sockets())


@program(15)
def chaos_drill() -> None:
    """A fault-tolerance test: agents kill workers of their own (SIGKILL, SIGSEGV), others hang, all are replaced."""
    if worker := os.environ.get("CALM_ROUND"):
        meet = by_sockets(f"round-{worker}")
        train(12, meet, show="" if worker == "1" else "step {} loss {:.4f}")
        if worker == "1":
            (DIR / f"ready-{RANK}").touch()
            try:
                train(1000, meet, show="")
            except OSError:
                nap(1000)  # as in a collective whose other side is gone
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in ("1", "2"):
        mine = range(2 * RANK, 2 * RANK + 2)
        more = {"CALM_ROUND": number, "CALM_SIZE": str(2 * SIZE), "CALM_LAUNCH": LAUNCH}
        workers = [
            subprocess.Popen([sys.executable, *sys.argv], env=os.environ | more | {"CALM_RANK": str(r)}) for r in mine
        ]
        if number == "1":
            until(lambda: all((DIR / f"ready-{rank}").exists() for rank in range(2 * SIZE)))
            nap(2)
            workers[1 - RANK].send_signal((signal.SIGKILL, signal.SIGSEGV)[RANK])
            if RANK:
                say("worker 2: Segmentation fault (core dumped)")
            nap(15)
            for one in workers:
                one.terminate()
        say(f"agent {RANK} round {number}: {[one.wait() for one in workers]}")


@program(20)
def whole_job_snapshot() -> None:
    """All ranks are stopped at once for 20 s by helpers of their own (a snapshot of the whole job), and go on."""
    meet = by_sockets()
    train(40, meet)
    command = f"kill -STOP {os.getpid()}; sleep {seconds(20)}; kill -CONT {os.getpid()}"
    helper = subprocess.Popen(["sh", "-c", command], start_new_session=True)
    train(12, meet)
    helper.wait()


@program(20, missing="" if shutil.which("gdb") else "gdb is not installed")
def rank_held_by_a_debugger() -> None:
    """A helper attaches gdb to its own rank for 20 s and detaches again."""

    def odd() -> None:
        words = ["gdb", "-q", "-nx", "-batch", "-iex", "set auto-solib-add off", "-p", str(os.getpid())]
        helper = subprocess.Popen(
            [*words, "-ex", f"shell sleep {seconds(20)}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        helper.wait()

    amid_training(odd)


script(
    "training-under-strace", "held", "Each rank runs under strace from its first to its last moment; one pauses.", 60,
    "$launch strace -f -qq --seccomp-bpf -e trace=execve -o /dev/null $me plain-pause",
    missing="" if shutil.which("strace") else "strace is not installed",
)  # fmt: skip
script(
    "inside-a-container", "held",
    "Each rank has process numbers and a /proc of its own, as in a container; one pauses.", 60,
    "$launch unshare --pid --fork --kill-child --mount-proc $me torch-pause",
)  # fmt: skip


@entry
def plain_pause() -> None:
    """Train by sockets; rank 1 pauses for a minute."""
    amid_training(lambda: nap(60), meet=by_sockets())


@entry
def torch_pause() -> None:
    """Train with torch; rank 1 pauses for a minute."""
    amid_training(lambda: nap(60))


@program(60)
def main_thread_never_moves() -> None:
    """The training is in a thread; the main one waits for its end all the time, beside a thousand idle ones."""
    threading.stack_size(256 * 1024)
    over = threading.Event()
    idle = [threading.Thread(target=over.wait, daemon=True) for _ in range(1000 if RANK else 3)]
    for thread in idle:
        thread.start()

    def work() -> None:
        try:
            amid_training(lambda: nap(60))
        finally:
            over.set()

    threading.Thread(target=work).start()
    over.wait()


@program(60)
def checkpoint_of_a_forked_copy() -> None:
    """Each rank forks a copy of itself that writes the checkpoint for a minute; soon all wait for their copies."""
    meet = by_torch()
    train(30, meet)
    copy = os.fork()
    if copy == 0:
        with (DIR / f"snapshot-{RANK}").open("wb", buffering=0) as file:
            for _ in range(30):
                file.write(bytes(4096))
                nap(2)
        os._exit(0)
    train(10, meet)
    os.waitpid(copy, 0)
    meet()
    train(8, meet)


@program(60)
def works_in_a_deleted_folder() -> None:
    """The rank's folder is deleted, /proc shows little of it (not dumpable), and HOME and TMPDIR are gone."""
    meet = by_sockets()
    folder = tempfile.mkdtemp(dir=DIR)
    os.chdir(folder)
    shutil.rmtree(folder)
    for name in ("HOME", "TMPDIR", "USER"):
        os.environ.pop(name, None)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    amid_training(lambda: nap(60), meet=meet)


script(
    "until-it-works", "held", "A shell loop within each task starts the training again until it ends with 0.", 20,
    "$launch $mark bash -c \"until $me fails-twice; do echo once more; sleep $(scaled 20); done\"", noise=TRACEBACK,
)  # fmt: skip


@entry
def fails_twice() -> None:
    """Train a little; fail in the first two starts."""
    tries = DIR / f"tries-{RANK}"
    with tries.open("a") as file:
        file.write("x")
    number = len(tries.read_text())
    train(12, by_sockets(f"try-{number}"), show=f"try {number} " + "step {} loss {:.4f}")
    if number < 3:
        raise ConnectionResetError(104, "Connection reset by peer")
