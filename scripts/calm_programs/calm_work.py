"""All ranks, or one of them, work for long without a step, and nobody has announced it."""

from __future__ import annotations

import cProfile
import ctypes
import gc
import io
import mmap
import os
import pstats
import subprocess
import threading
import time
from pathlib import Path

from calm_kit import BIN, DIR, RANK, amid_training, by_sockets, by_torch, compute, nap, program, say, seconds, train


@program(75)
def evaluation_on_rank_0() -> None:
    """Rank 0 evaluates while the others wait in a barrier."""
    amid_training(lambda: compute(75), on=0)


@program(60)
def checkpoint_on_rank_0() -> None:
    """Rank 0 writes a checkpoint slowly, with fsync, while the others wait."""

    def odd() -> None:
        with (DIR / "model.pt").open("wb") as file:
            for _ in range(30):
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())
                nap(2)

    amid_training(odd, on=0)


@program(75, noise=["cc1plus"])
def first_step_compiles() -> None:
    """Before the first step rank 0 compiles kernels one after the other with cc; the others wait."""
    meet = by_sockets()
    if RANK == 0:
        until_s = time.monotonic() + seconds(75)
        while time.monotonic() < until_s:
            source = "int kernel(int x) { return x * 2654435761u; }" * 1
            command = ["cc", "-x", "c", "-c", "-", "-o", str(DIR / "kernel.o")]
            subprocess.run(command, input=source.encode(), check=True)
            time.sleep(seconds(3))
    meet()
    train(40, meet)


@program(70)
def shape_change_compiles() -> None:
    """In the middle of training a new shape is compiled by a child, on all ranks at once."""
    meet = by_sockets()
    train(40, meet)
    subprocess.run(["cc", "-x", "c", "-c", "-", "-o", "/dev/null"], input=b"int f;", check=True)
    subprocess.run(["sleep", str(seconds(70))], check=True)
    train(8, meet)


@program(45)
def garbage_collection() -> None:
    """The collector is run by hand for most of a minute, on all ranks."""
    meet = by_sockets()
    train(40, meet)
    keep = [[] for _ in range(20_000)]  # type: ignore[var-annotated]
    until_s = time.monotonic() + seconds(45)
    while time.monotonic() < until_s:
        gc.collect()
        time.sleep(0.05)
    train(8, meet)
    del keep


@program(45)
def profiler_pause() -> None:
    """Rank 1's profiler writes its trace for most of a minute."""
    profile = cProfile.Profile()
    meet = by_sockets()
    profile.runcall(train, 15, meet)
    if RANK == 1:
        until_s = time.monotonic() + seconds(45)
        while time.monotonic() < until_s:
            pstats.Stats(profile, stream=io.StringIO()).sort_stats("cumulative").print_stats()
            time.sleep(0.1)
    train(8, meet)


@program(60)
def lightning_validation() -> None:
    """Like Lightning: a training bar with carriage returns, then a validation bar that moves for a minute."""
    meet = by_sockets()
    for epoch in range(2):
        train(40, meet, show=f"Epoch {epoch}: step {{}} train_loss={{:.3f}}")
        for batch in range(20):
            nap(3 if epoch == 0 else 0.3)
            if RANK == 0:
                say(f"Validation DataLoader 0: {5 * batch + 5}%|####      | {batch + 1}/20")


@program(60)
def silent_validation() -> None:
    """A validation loop of all ranks without a line for a minute, and then another epoch."""
    meet = by_torch()
    train(40, meet, show="epoch 0 step {} loss {:.3f}")
    for _ in range(12):
        compute(5)
        meet()
    train(8, meet, show="epoch 1 step {} loss {:.3f}")


@program(60)
def gradient_accumulation() -> None:
    """After short steps the program accumulates gradients: each step takes a minute."""
    meet = by_sockets()
    train(40, meet)
    train(2, meet, each_s=60)


@program(60)
def growing_sequences() -> None:
    """A curriculum: steps of 0.4 s, then of 5, 20 and 60 s."""
    meet = by_sockets()
    train(40, meet)
    for each_s in (5, 20, 60):
        train(1, meet, each_s=each_s)
    train(5, meet)


@program(60)
def epoch_change() -> None:
    """Between two epochs all ranks shuffle and sort the data set for a minute."""
    meet = by_torch()
    train(40, meet, show="epoch 0 step {} loss {:.3f}")
    compute(60)
    train(8, meet, show="epoch 1 step {} loss {:.3f}")


@program(50)
def optimizer_on_the_host() -> None:
    """One rank's optimizer computes on the host in C without Python's lock; the others wait in an all-reduce."""
    import torch

    def odd() -> None:
        until_s = time.monotonic() + seconds(50)
        while time.monotonic() < until_s:
            torch.mm(torch.ones(300, 300), torch.ones(300, 300))
            time.sleep(0.05)

    amid_training(odd)


@program(50)
def mapped_loader() -> None:
    """A rank reads records of a mapped file, with long waits between them."""

    def odd() -> None:
        path = DIR / "records.bin"
        path.write_bytes(bytes(1 << 20))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as records:
            for place in range(25):
                records[place * 4096] = place
                nap(2)

    amid_training(odd)


@program(50)
def two_hundred_threads() -> None:
    """A rank with 200 threads, of which the main one waits for the slowest."""

    def odd() -> None:
        threads = [threading.Thread(target=nap, args=(50,)) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    amid_training(odd)


@program(75)
def tokenizes_before_the_first_step() -> None:
    """Rank 0 tokenizes before the first step while the others wait in a barrier."""
    meet = by_torch()
    if RANK == 0:
        compute(75)
    meet()
    train(40, meet)


@program(60)
def slow_upload() -> None:
    """A child copies the checkpoint to slow storage; the rank waits for it, the others for the rank."""

    def odd() -> None:
        command = f"for i in $(seq 30); do head -c 65536 /dev/zero; sleep {seconds(2)}; done > {DIR}/copy"
        subprocess.run(["bash", "-c", command], check=True)

    amid_training(odd, on=0)


@program(45)
def c_loop_keeps_the_gil() -> None:
    """A C function computes for 45 s and keeps Python's lock."""
    spin = ctypes.PyDLL(str(BIN / "calm_spin.so")).spin_seconds
    spin.argtypes = [ctypes.c_double]
    amid_training(lambda: spin(seconds(45)))


@program(50)
def optimizer_state_to_disk() -> None:
    """All ranks write their optimizer state in turn; each turn takes 25 s, and the others wait."""
    meet = by_sockets()
    train(40, meet)
    for turn in range(2):
        if turn == RANK:
            compute(25)
            Path(DIR / f"optimizer-{RANK}").write_bytes(bytes(1 << 16))
        meet()
    train(8, meet)


@program(60)
def sampling_pause() -> None:
    """A diffusion training draws samples: rank 0's bar of samples moves, no step does."""

    def odd() -> None:
        for number in range(12):
            nap(5)
            say(f"sampling: {number + 1}/12")

    amid_training(odd, on=0)


@program(70)
def warmed_by_long_first_step() -> None:
    """The very first step takes 70 s on all ranks (autotuning); all others take less than half a second."""
    meet = by_sockets()
    train(1, meet, each_s=70)
    train(20, meet)
