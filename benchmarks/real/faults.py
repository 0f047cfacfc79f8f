"""What goes wrong inside a rank, or in what it calls. Each function returns only where the program would go on.

They run in the rank's own process, or in a data loader's worker: whoever calls them decides.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

SLOW_S = 90.0
"""How long what is only slow takes: longer than it is looked at, also on a crowded machine."""


class Context:
    """What a fault may need of its rank.

    Args:
        folder: The case's own.
        rank: Which rank it is.
        only: Ranks that the fault strikes.
        device: Where it computes.
    """

    def __init__(self, folder: Path, rank: int, only: tuple[int, ...], device: str = "cpu") -> None:
        self.folder, self.rank, self.only, self.device = folder, rank, only, device


def read_of_a_dead_file_system(run: Context) -> None:
    """A FIFO that nobody writes stands in for a server that does not answer: the read never returns."""
    path = run.folder / f"shard-{run.rank}-{os.getpid()}"
    os.mkfifo(path)
    # Opened for both, so that it is the read that waits.
    with os.fdopen(os.open(path, os.O_RDWR), "rb") as stream:
        stream.read(1)


def file_lock(run: Context) -> None:
    """`flock` on a file that another process holds."""
    path = run.folder / "lock"
    holder = (
        f"import fcntl, time; f = open({str(path)!r}, 'w'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(9e3)"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, env={}) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with path.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)


def uninterruptible(_: Context) -> None:
    """D state: the parent of a `vfork` waits in the kernel until its child has called exec, which it never does."""
    libc = ctypes.PyDLL(None)
    if libc.vfork() == 0:
        libc.pause()


def endless_loop(_: Context) -> None:
    """Python code that never comes to an end."""
    number = 0
    while True:
        number = (number * 1103515245 + 12345) % 2147483648


def endless_regex(_: Context) -> None:
    """A C call that holds the GIL and the processor: a pattern that backtracks for ever."""
    re.match(r"(?:a+)+$", "a" * 64 + "b")


def sleep_with_the_gil(_: Context) -> None:
    """A C call that holds the GIL and does nothing: no thread of the process can run."""
    ctypes.PyDLL(None).sleep(100_000)


def python_lock(_: Context) -> None:
    """A lock that its own thread holds."""
    lock = threading.Lock()
    with lock:
        lock.acquire()


def crossed_locks(_: Context) -> None:
    """Two threads, two locks, taken in the opposite order."""
    one, two, ready = threading.Lock(), threading.Lock(), threading.Event()

    def other() -> None:
        with two:
            ready.set()
            with one:
                pass

    with one:
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        ready.wait()
        with two:
            pass


def dead_prefetcher(_: Context) -> None:
    """The thread that filled the queue has died of an error."""
    batches: queue.Queue[int] = queue.Queue(1)
    threading.Thread(target=sys.exit, daemon=True).start()
    batches.get()


def silent_server(_: Context) -> None:
    """A server that takes the connection and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.create_connection(server.getsockname()) as client:
            client.recv(1)


def waiting_for_a_child(_: Context) -> None:
    """A tool that the program calls never ends."""
    subprocess.run(["sleep", "100000"], check=False)


def retries(_: Context) -> None:
    """Retries with a growing pause, for ever."""
    pause_s = 0.5
    while True:
        time.sleep(pause_s)
        pause_s = min(60.0, 2 * pause_s)


def stopped(_: Context) -> None:
    """Stopped by a signal."""
    os.kill(os.getpid(), signal.SIGSTOP)


def killed(_: Context) -> None:
    """Killed, as the kernel does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def segmentation_fault(_: Context) -> None:
    """A crash in native code."""
    os.kill(os.getpid(), signal.SIGSEGV)


def user_error(_: Context) -> None:
    """An error of the program's own."""
    raise ValueError("label 31 is not one of 0 to 9")


def memory_error_of_the_gpu(_: Context) -> None:
    """What torch says where a GPU's memory has a fault that cannot be corrected."""
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


def clean_exit(_: Context) -> None:
    """The program ends, as it thinks, well."""
    sys.exit(0)


def other_collective(_: Context) -> None:
    """The program's branches differ: this rank enters a barrier where its peers reduce."""
    dist.barrier()


def other_shape(run: Context) -> None:
    """This rank reduces a smaller tensor than its peers."""
    dist.all_reduce(torch.ones(3, device=run.device))


def both_receive(run: Context) -> None:
    """Neighbours that both wait for the other to send first."""
    dist.recv(torch.ones(4, device=run.device), src=run.rank ^ 1, tag=7)


def evaluate(_: Context) -> None:
    """An evaluation that takes its time."""
    model, batch = torch.nn.Linear(256, 256), torch.ones(256, 256)
    end_s = time.monotonic() + SLOW_S
    with torch.no_grad():
        while time.monotonic() < end_s:
            model(batch).sum().item()


def save_checkpoint(run: Context) -> None:
    """One rank writes, piece by piece, while the others wait for it."""
    state = {"weights": torch.ones(1 << 20)}
    end_s = time.monotonic() + SLOW_S
    while time.monotonic() < end_s:
        torch.save(state, run.folder / f"checkpoint-{run.rank}")


def first_compilation(_: Context) -> None:
    """torch.compile builds kernel after kernel, each for another shape, with a compiler that takes its time."""
    end_s = time.monotonic() + SLOW_S
    size = 8
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        while time.monotonic() < end_s:
            torch._dynamo.reset()
            torch.compile(lambda x: torch.sin(x) @ x)(torch.ones(size, size))
            size += 1


def long_sequence(_: Context) -> None:
    """A batch that is much longer than the others: this rank computes, and comes to an end."""
    weight = torch.rand(384, 384)
    end_s = time.monotonic() + SLOW_S
    while time.monotonic() < end_s:
        weight = torch.tanh(weight @ weight)


def endless_kernel(_: Context) -> None:
    """A kernel that does not come to an end, and Python that waits for it. Only on GPUs."""
    torch.cuda._sleep(1 << 62)
    torch.cuda.synchronize()


def device_side_assert(run: Context) -> None:
    """An index out of range, found by the kernel itself: the CUDA context is lost. Only on GPUs."""
    torch.zeros(4, device=run.device)[torch.tensor([9], device=run.device)].sum().item()


def debugger_prompt(_: Context) -> None:
    """A forgotten `breakpoint()`."""
    breakpoint()  # noqa: T100 (it is the fault)


FAULTS: dict[str, Callable[[Context], None]] = {
    fault.__name__: fault
    for fault in (
        read_of_a_dead_file_system, file_lock, uninterruptible, endless_loop, endless_regex, sleep_with_the_gil,
        python_lock, crossed_locks, dead_prefetcher, silent_server, waiting_for_a_child, retries, stopped, killed,
        segmentation_fault, user_error, memory_error_of_the_gpu, clean_exit, other_collective, other_shape,
        both_receive, evaluate, save_checkpoint, first_compilation, long_sequence, endless_kernel, device_side_assert,
        debugger_prompt,
    )
}  # fmt: skip
