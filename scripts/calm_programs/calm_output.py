"""Output that looks like something else: errors that are handled, counters that fall, other tools' messages."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

from calm_kit import RANK, amid_training, by_sockets, by_torch, compute, nap, program, say, train


@program(40)
def handled_exception() -> None:
    """Rank 1 prints `[rank1]: Traceback …` of an exception that it handles, and works for 40 s."""

    def odd() -> None:
        try:
            raise RuntimeError("corrupt sample 1234, it is skipped")
        except RuntimeError:
            for line in traceback.format_exc().splitlines():
                say(f"[rank{RANK}]: {line}")
        compute(40)

    amid_training(odd)


@program(40)
def handled_cuda_error() -> None:
    """Rank 1 prints a CUDA error that it handles by computing on the host, for 40 s."""

    def odd() -> None:
        say("RuntimeError: CUDA error: an illegal memory access was encountered; the host computes this batch")
        compute(40)

    amid_training(odd)


@program(20)
def nan_of_a_stage() -> None:
    """The stages of a pipeline that have no loss report NaN by design; only the last has one."""
    from slurm_robust import progress

    meet = by_sockets()
    for number in range(60):
        compute(0.4)
        meet()
        progress.step(number, loss=1 / (number + 1) if RANK == 1 else float("nan"))
        if number == 40:
            nap(20)


@program(30)
def nan_in_the_log() -> None:
    """The printed loss is NaN from the first step on: the head of this stage has none."""
    meet = by_sockets()
    train(30, meet, show="step {} loss nan grad_norm {:.3f}")
    nap(30)
    train(8, meet, show="step {} loss nan grad_norm {:.3f}")


@program(45)
def looks_like_srun() -> None:
    """The program prints srun's lines for tasks of another job, from a log that it analyses."""

    def odd() -> None:
        say("srun: error: n7: task 9: Killed")
        say("srun: error: n7: task 12: Exited with exit code 1")
        say("slurmstepd: error: *** STEP 77.0 ON n7 CANCELLED AT 2026-01-01T00:00:00 ***")
        nap(45)

    amid_training(odd)


@program(45)
def looks_like_xid() -> None:
    """The program prints kernel lines with XIDs, from a report that it summarises."""

    def odd() -> None:
        say("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.")
        say("kernel: NVRM: Xid (PCI:0000:5e:00): 48, Double Bit ECC Error")
        nap(45)

    amid_training(odd)


@program(45)
def looks_like_nccl() -> None:
    """A test of an error path prints NCCL's watchdog timeout and goes on."""

    def odd() -> None:
        say(
            "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE) "
            "ran for 600000 milliseconds before timing out."
        )
        say("torch.distributed.DistBackendError: NCCL error: unhandled system error (a test expects this)")
        nap(45)

    amid_training(odd)


@program(45)
def looks_like_oom() -> None:
    """A rank prints Slurm's message of killed processes, and handles an out-of-memory error by a smaller batch."""

    def odd() -> None:
        say("slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks have been OOM Killed.")
        say("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB; the batch is halved")
        nap(45)

    amid_training(odd)


@program(45)
def looks_like_ours() -> None:
    """A rank prints lines that begin like those of srobust, from another job's log."""

    def odd() -> None:
        say("rank 1 says: srobust: silence suspected; suspect: rank 1 on n1, confidence 0.95")
        say("[srobust] asked the daemon for a requeue without n1")
        nap(45)

    amid_training(odd)


@program(45)
def falling_steps() -> None:
    """The log's steps count down, and begin again with each stage."""
    meet = by_sockets()
    for stage in range(3):
        for left in range(12, 0, -1):
            train(1, meet, show="")
            if RANK == 0:
                say(f"stage {stage} step {left} loss {left / 12:.3f}")
        nap(45 if stage == 1 else 3)


@program(60)
def stands_at_a_counter() -> None:
    """A monitor of rank 0 prints the same step with the same loss each second during a pause."""

    def odd() -> None:
        for _ in range(60):
            say("step 15 loss 0.1765 (evaluating)")
            nap(1)

    amid_training(odd, on=0)


@program(60)
def without_any_output() -> None:
    """Nothing is ever printed; a step of a minute is among many short ones."""
    meet = by_torch()
    train(20, meet, show="")
    train(1, meet, show="", each_s=60)
    train(10, meet, show="")


@program(45)
def megabytes_of_output() -> None:
    """Rank 1 prints eight megabytes, and pauses for 45 s."""

    def odd() -> None:
        for number in range(40_000):  # in short lines: Slurm itself breaks a long one now and then
            say(f"sample {number}: " + "tensor " * 27)
        nap(45)

    amid_training(odd)


@program(45)
def binary_output() -> None:
    """A rank writes bytes that are no text, with zeros and escape sequences, to its output."""

    def odd() -> None:
        for _ in range(50):
            sys.stdout.buffer.write(bytes(range(256)) + b"\x1b[2J\x1b]0;title\x07\xff\xfe\n")
        sys.stdout.buffer.flush()
        nap(45)

    amid_training(odd)


@program(45)
def progress_bars() -> None:
    """Bars with carriage returns on standard error, and an evaluation whose bar is never finished."""

    def bar(word: str, count: int, total: int, wait: float) -> None:
        for number in range(count):
            nap(wait)
            sys.stderr.write(f"\r{word}: {100 * number // total}%|###   | {number}/{total} [00:01<00:09, 9.1it/s]")
            sys.stderr.flush()
        sys.stderr.write("\n")

    meet = by_sockets()
    meet()
    if RANK == 0:
        bar("train", 20, 20, 0.4)
        bar("eval", 9, 40, 5)
    meet()


@program(45)
def output_to_its_own_file() -> None:
    """After some steps the program redirects its output into a file of its own."""
    meet = by_sockets()
    train(12, meet)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        target = os.open("own.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
    train(10, meet)
    nap(45)
    train(8, meet)


@program(60)
def countdown() -> None:
    """The log shows the minutes that remain, and nothing that grows."""
    meet = by_sockets()
    for left in range(30, 0, -1):
        train(1, meet, show="")
        if RANK == 0:
            say(f"eta 0:{left:02d}:00 remaining {left}/30")
        if left == 10:
            nap(60)


@program(60)
def steps_of_one_and_prints_of_another() -> None:
    """The first stage calls progress.step for some steps only; the second prints its steps until the end."""
    from slurm_robust import progress

    meet = by_sockets()
    for number in range(160):
        compute(0.4)
        meet()
        if RANK == 0 and number < 15:
            progress.step(number)
        if RANK == 1:
            say(f"step {number} loss {3 / (number + 3):.4f}")


@program(45)
def progress_calls_of_one_rank() -> None:
    """Only rank 1 calls progress.step, and pauses for 45 s without announcing it."""
    from slurm_robust import progress

    meet = by_torch()
    for number in range(25):
        compute(0.4)
        meet()
        if RANK == 1:
            progress.step(number)
            if number == 15:
                nap(45)
