"""Children, stopped and traced processes, zombies, forks and programs that replace themselves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

from calm_kit import (
    BIN,
    DIR,
    LAUNCH,
    RANK,
    SIZE,
    amid_training,
    by_sockets,
    nap,
    program,
    say,
    seconds,
    train,
)


@program(50)
def helper_stopped_for_a_while() -> None:
    """A rank stops its own helper by SIGSTOP for 50 s, by design, and goes on training meanwhile."""
    meet = by_sockets()
    helper = subprocess.Popen(["sleep", "1000"])
    train(40, meet)
    helper.send_signal(signal.SIGSTOP)
    train(125, meet)
    helper.send_signal(signal.SIGCONT)
    train(5, meet)
    helper.kill()
    helper.wait()


@program(50)
def helper_stopped_while_evaluating() -> None:
    """A rank stops its prefetcher to have the processor for itself, and evaluates for 50 s."""

    def odd() -> None:
        helper = subprocess.Popen(["sleep", "1000"])
        helper.send_signal(signal.SIGSTOP)
        nap(50)
        helper.kill()
        helper.wait()

    amid_training(odd)


@program(0)
def helper_stopped_for_ever() -> None:
    """A helper is stopped from the first step to the last; it is kept as a template for forks."""
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    helper.send_signal(signal.SIGSTOP)
    train(40, by_sockets())
    helper.kill()
    helper.wait()


@program(20)
def rank_stopped_for_a_snapshot() -> None:
    """A helper stops its own rank for 20 s (as criu does for a snapshot) and lets it go on."""

    def odd() -> None:
        command = f"kill -STOP {os.getpid()}; sleep {seconds(20)}; kill -CONT {os.getpid()}"
        helper = subprocess.Popen(["sh", "-c", command])
        helper.wait()

    amid_training(odd)


@program(50, missing="" if shutil.which("strace") else "strace is not installed")
def child_under_strace() -> None:
    """A rank runs its converter under strace and waits for it."""
    command = ["strace", "-f", "-o", "/dev/null", "sleep", str(seconds(50))]
    amid_training(lambda: subprocess.run(command, check=True))


@program(45, missing="" if shutil.which("gdb") else "gdb is not installed")
def child_held_by_a_debugger() -> None:
    """A rank's child stands in a debugger (traced stop) for 45 s, as with a crash reporter."""

    def odd() -> None:
        child = subprocess.Popen(["sleep", "1000"])
        command = ["gdb", "-q", "-batch", "-p", str(child.pid), "-ex", f"shell sleep {seconds(45)}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        child.kill()
        child.wait()

    amid_training(odd)


@program(40)
def zombies() -> None:
    """A rank leaves twenty zombies, pauses for 40 s and collects them at the end."""
    children = [subprocess.Popen(["true"]) for _ in range(20)]
    amid_training(lambda: nap(40))
    for child in children:
        child.wait()


@program(45)
def vfork_in_the_kernel() -> None:
    """A rank's converter is in the kernel (D state) for 45 s: it has called vfork, and its child sleeps."""
    amid_training(lambda: subprocess.run([str(BIN / "calm_vfork"), str(seconds(45))], check=True))


@program(40)
def fork_workers() -> None:
    """A rank forks workers with os.fork, gives them work by pipes, and waits for the slowest."""

    def odd() -> None:
        for wait in (1, 5, 40):
            if os.fork() == 0:
                nap(wait)
                os._exit(0)
        for _ in range(3):
            os.wait()

    amid_training(odd)


@program(30)
def exec_of_itself() -> None:
    """Each rank replaces itself by exec after some steps, as programs do that reload their code."""
    if "CALM_SECOND" not in os.environ:
        train(10, by_sockets())
        nap(30)
        os.environ["CALM_SECOND"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    train(10, by_sockets("second"), show="stage 2 step {} loss {:.3f}")


@program(30)
def leaves_a_daemon() -> None:
    """A rank starts a daemon with a session of its own, which outlives the last step by little."""

    def odd() -> None:
        subprocess.Popen(["sh", "-c", f"sleep {seconds(40)}"], start_new_session=True, stdout=subprocess.DEVNULL)
        nap(30)

    amid_training(odd)
    nap(15)


@program(50)
def child_is_killed_and_replaced() -> None:
    """A rank kills its stuck child by SIGKILL after 50 s, as designed, and starts another one."""

    def odd() -> None:
        stuck = subprocess.Popen(["sleep", "1000"])
        nap(50)
        stuck.kill()
        stuck.wait()
        subprocess.run(["true"], check=True)

    amid_training(odd)


@program(0)
def checkpoint_on_sigusr1() -> None:
    """Each rank sends itself SIGUSR1 and saves in the handler, for 20 s."""
    saved = []

    def save(*_: object) -> None:
        nap(20)
        (DIR / f"saved-{RANK}").touch()
        saved.append(1)

    signal.signal(signal.SIGUSR1, save)
    meet = by_sockets()
    train(40, meet)
    os.kill(os.getpid(), signal.SIGUSR1)
    train(8, meet)
    say(f"rank {RANK} has saved {len(saved)} time")


@program(45)
def hidden_behind_a_wrapper() -> None:
    """The training runs in a grandchild: task → sh → python; the task itself only waits."""
    if "CALM_INNER" in os.environ:
        amid_training(lambda: nap(45))
        return
    command = f"CALM_INNER=1 {sys.executable} {' '.join(sys.argv)}; exit $?"
    sys.exit(subprocess.run(["sh", "-c", command], check=False).returncode)


@program(45)
def name_of_another() -> None:
    """A rank starts a child that calls itself python and train.py, and that waits on a lock for the whole time."""
    code = "import threading; threading.Event().wait()"
    child = subprocess.Popen([sys.executable, "-c", code, "train.py"])
    amid_training(lambda: nap(45))
    child.kill()
    child.wait()


@program(45)
def without_slurms_environment() -> None:
    """The training starts itself again with an empty environment: nothing of Slurm's is in it."""
    if "SLURM_JOB_ID" in os.environ:
        keep = {name: os.environ[name] for name in ("PATH", "CALM_DIR", "CALM_SCALE")}
        keep |= {"CALM_LAUNCH": LAUNCH, "CALM_RANK": str(RANK), "CALM_SIZE": str(SIZE)}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=keep, check=False).returncode)
    amid_training(lambda: nap(45))


@program(0)
def restarts_its_workers() -> None:
    """Like an elastic agent: the task's worker fails once on all ranks, and the task starts it again."""
    if "CALM_WORKER" not in os.environ:
        for number in ("1", "2"):
            code = subprocess.run([sys.executable, *sys.argv], env=os.environ | {"CALM_WORKER": number}).returncode  # noqa: PLW1510
            say(f"worker {number} of rank {RANK} ended with {code}")
            nap(20)
        return
    first = os.environ["CALM_WORKER"] == "1"
    train(10 if first else 20, by_sockets("first" if first else "second"))
    if first:
        raise RuntimeError("the first worker loses its rendezvous, by design")


@program(45)
def nice_and_idle() -> None:
    """A rank lowers its priority to 19 and pauses for 45 s."""

    def odd() -> None:
        os.nice(19)
        time.sleep(seconds(45))

    amid_training(odd)
