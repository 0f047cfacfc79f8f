"""Held out: output that is late, foreign, alarming or not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

from calm_kit import (
    DIR,
    RANK,
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
)

script(
    "buffered-until-the-end", "held",
    "Lines go through a pipe to tee and are kept in the buffer: they appear at the very end. A minute's pause.", 60,
    "$launch $mark bash -c \"set -o pipefail; $me keeps-its-lines | tee task-\\$SLURM_PROCID.txt\"",
)  # fmt: skip


@entry
def keeps_its_lines() -> None:
    """Train; print into a big buffer."""
    meet = by_sockets()
    with open(1, "w", buffering=1 << 20, closefd=False) as out:
        for number in range(60):
            train(1, meet, show="")
            out.write(f"rank {RANK} step {number} loss {3 / (number + 3):.4f}\n")
            if number == 40 and RANK == 1:
                nap(60)


@program(60)
def descriptor_1_is_a_socket() -> None:
    """Like a daemon the program closes 0, 1 and 2; its connections to the other ranks get these numbers."""
    if RANK == 0:
        say("training starts, see the tracking server for its steps")
    sys.stdout.flush()
    for number in range(3):
        os.close(number)
    meet = by_sockets()
    train(40, meet, show="")
    if RANK == 1:
        nap(60)
    train(12, meet, show="")
    os._exit(0)


@program(60, tasks=4)
def json_of_the_last_rank() -> None:
    """Only the last rank reports, as JSON on standard error; rank 0 is late by a minute."""
    meet = by_sockets()
    for number in range(60):
        train(1, meet, show="")
        if RANK == 3:
            line = {"tokens": (number + 1) * 4_194_304, "loss": round(3 / (number + 3), 4), "lr": None, "done": False}
            sys.stderr.write(json.dumps(line) + "\n")
            sys.stderr.flush()
        if RANK == 0 and number == 40:
            nap(60)


@program(60)
def decimal_commas() -> None:
    """German numbers: steps have points between thousands, losses have commas; the evaluation has no numbers."""
    meet = by_sockets()
    for number in range(50):
        train(1, meet, show="")
        if RANK == 0:
            step = f"{(number + 1) * 128:,}".replace(",", ".")
            loss = f"{3 / (number + 3):.4f}".replace(".", ",")
            say(f"Schritt {step} | Verlust {loss} | noch {50 - number} %")
        if number == 40:
            if RANK == 0:
                say("Auswertung läuft …")
            nap(60)


@program(60)
def two_counters() -> None:
    """Two models in turn: the generator's counter stands for a minute while the critic's runs."""
    meet = by_sockets()
    train(30, meet, show="G step {} loss {:.4f}")
    for number in range(30):
        train(1, meet, show="", each_s=2)
        if RANK == 0:
            say(f"D step {1000 * number} loss 0.693 (G step 30 waits)")
    train(20, meet, show="G step {} loss {:.4f}")


@program(60, noise=["watchdog:", *TRACEBACK])
def own_watchdog_dumps_stacks() -> None:
    """The program's own watchdog prints the stacks of all threads each 15 s while rank 1 evaluates for a minute."""
    import traceback

    def watch() -> None:  # not by faulthandler: that reads frames that change meanwhile, and may crash
        while not over.wait(max(0.5, seconds(15))):
            sys.stderr.write(f"watchdog: rank {RANK} made no step within 15 s, the process group may hang; stacks:\n")
            for number, frame in sys._current_frames().items():
                text = "".join(traceback.format_stack(frame))
                sys.stderr.write(f"Traceback of thread {number:#x} (most recent call last):\n{text}")
            sys.stderr.flush()

    over = threading.Event()
    meet = by_torch()
    train(1, meet)
    threading.Thread(target=watch).start()
    try:
        amid_training(lambda: nap(60), meet=meet)
    finally:
        over.set()


@program(50, noise=[r"\bn\d+\b"])
def names_its_own_nodes() -> None:
    """A drill: rank 1 prints errors that name the real nodes of its job, as lost and as broken, and pauses."""

    def odd() -> None:
        here = os.environ.get("SLURMD_NODENAME", "n1")
        for line in (
            f"{here}:4711:4892 [0] NCCL WARN socketProgress: Connection closed by remote peer {here}<45678>",
            f"[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] {here} is remote process exited or network error",
            f"health check: {here} GPU 3: uncorrectable ECC error, has fallen off the bus; would be drained (drill)",
            f"{here}: Bus error (core dumped), Machine check: Processor context corrupt",
            f"drill over: {here} is well",
        ):
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
        nap(50)

    amid_training(odd, meet=by_sockets())


script(
    "unit-tests", "held",
    "pytest under srun: tests whose children die by signals and print GPU errors, and a slow one.", 60,
    "$launch $me runs-its-tests", noise=[r" in [\d.]+s", r"^[.x]", "NVRM", "NCCL error"],
)  # fmt: skip
_TESTS = """
import os, signal, subprocess, sys, time
import pytest

def dies(number):
    code = f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), {int(number)})"
    return subprocess.run([sys.executable, "-c", code]).returncode

@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGKILL])
def test_a_worker_dies(number):
    assert dies(number) == -number

def test_errors_are_known():
    print("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    print("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.")
    print("torch.distributed.DistBackendError: NCCL error: unhandled system error")

def test_slow():
    time.sleep(60 * float(os.environ["CALM_SCALE"]))

@pytest.mark.xfail
def test_fails():
    raise RuntimeError("CUDA error: device-side assert triggered")
"""


@entry
def runs_its_tests() -> None:
    """Write a file of tests and let pytest run it."""
    path = DIR / f"tests-{RANK}.py"
    path.write_text(_TESTS)
    words = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--tb=short", path.name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.exit(subprocess.run(words, cwd=DIR, check=False).returncode)
