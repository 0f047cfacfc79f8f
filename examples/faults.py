"""Faults for drills and tests: things that break trainings, injected into `train.py` on purpose.

Nothing happens unless the environment variable TRAIN_FAULT holds a JSON object:

    {"kind": "loader_hang", "rank": 2, "step": 30, "once_file": "/shared/fault-done", "seconds": 60}

`rank` (default 0) and `step` (default 1) say where the fault strikes. With `node` it strikes on that node only.
`seconds` is how long a temporary kind lasts (default 30). With `once_file` it strikes only if that file does not exist
yet, so it does not recur after a restart; otherwise it strikes in every attempt.

kind               what happens to the rank at that step
loader_hang        a data-loader worker locks itself out; the rank waits for its batch for ever
dead_mount         its process waits in the kernel for ever (D state), as on a file server that does not answer
stop               SIGSTOP to itself
kill               SIGKILL to itself
exception          TypeError in the training code
cuda_error         RuntimeError with the text of a failed GPU; -1 as `rank` means any rank, for use with `node`
import_error       ImportError before anything is set up (`step` does not count)
endless_loop       spins in Python code
slow_rank          each step from there on takes `seconds` longer
wrong_collective   waits in a barrier while the others are in an all-reduce
nan                the loss is NaN from there on
long_eval          computes for `seconds` in an unannounced evaluation; the others wait in a barrier
long_step          computes for `seconds` inside a step
long_checkpoint    stays `seconds` in the checkpoint phase
sleep_outside      sleeps `seconds` between two steps
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time

import torch.distributed as dist

KINDS = (
    "loader_hang",
    "dead_mount",
    "stop",
    "kill",
    "exception",
    "cuda_error",
    "import_error",
    "endless_loop",
    "slow_rank",
    "wrong_collective",
    "nan",
    "long_eval",
    "long_step",
    "long_checkpoint",
    "sleep_outside",
)


class Fault:
    """The fault asked for, if any; each method is called where its kinds strike, and returns at once otherwise."""

    def __init__(self, rank: int, text: str | None = None) -> None:
        text = os.environ.get("TRAIN_FAULT", "") if text is None else text
        given = json.loads(text) if text else {}
        self.kind: str = given.get("kind", "")
        if self.kind and self.kind not in KINDS:
            raise SystemExit(f"TRAIN_FAULT: kind {self.kind!r} is none of {', '.join(KINDS)}")
        self.step = int(given.get("step", 1))
        self.seconds = float(given.get("seconds", 30))
        self.once_file: str = given.get("once_file", "")
        node = os.environ.get("SLURMD_NODENAME", "")
        self.here = bool(self.kind) and int(given.get("rank", 0)) in (rank, -1) and given.get("node", node) == node
        self.struck = False

    def strikes(self, kind: str, step: int, *, lasting: bool = False) -> bool:
        """True once (from then on, where `lasting`), if this kind is due at this step of this rank."""
        if not self.here or self.kind != kind or step < self.step:
            return False
        if self.struck:
            return lasting
        if self.once_file:
            try:
                os.close(os.open(self.once_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            except FileExistsError:
                self.here = False
                return False
        self.struck = True
        print(f"fault: {kind} at step {step} at {time.time():.3f}", file=sys.stderr, flush=True)
        return True

    def at_import(self) -> None:
        """Before anything is set up."""
        if self.strikes("import_error", self.step):
            raise ImportError("TRAIN_FAULT: no module named 'flash_attention_of_yesterday'")

    def in_loader(self, step: int) -> None:
        """In the data-loader worker, for the batch of `step`."""
        if self.strikes("loader_hang", step):
            lock = threading.Lock()
            with lock:
                lock.acquire()  # a second time: nobody will ever release it

    def before_step(self, step: int) -> None:
        """Between two steps."""
        if self.strikes("dead_mount", step):
            wait_in_the_kernel()
        if self.strikes("stop", step):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.strikes("kill", step):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.strikes("exception", step):
            len(step)  # type: ignore[arg-type] (the mistake is the point)
        if self.strikes("cuda_error", step):
            raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported elsewhere")
        if self.strikes("sleep_outside", step):
            time.sleep(self.seconds)

    def in_step(self, step: int) -> None:
        """Inside a step, before its gradients are exchanged."""
        if self.strikes("endless_loop", step):
            count = 0
            while count >= 0:
                count += 1
        if self.strikes("long_step", step):
            compute(self.seconds)
        if self.strikes("slow_rank", step, lasting=True):
            compute(self.seconds)
        if self.strikes("wrong_collective", step):
            dist.barrier()

    def in_evaluation(self, step: int) -> bool:
        """True if this step's evaluation is to be run by this rank alone, unannounced; it has then been run."""
        if self.strikes("long_eval", step):
            compute(self.seconds)
            return True
        return False

    def in_checkpoint(self, step: int) -> None:
        """Inside the checkpoint phase."""
        if self.strikes("long_checkpoint", step):
            time.sleep(self.seconds)

    def loss(self, step: int, value: float) -> float:
        """The loss of this step as it is reported."""
        return float("nan") if self.strikes("nan", step, lasting=True) else value


_PR_SET_PDEATHSIG = 1


def wait_in_the_kernel() -> None:
    """D state: the parent of a `vfork` waits in the kernel until its child calls exec, which this child never does.

    The child ends with its parent. It shares the parent's memory, and so it only makes system calls.
    """
    libc = ctypes.PyDLL(None)
    if libc.vfork() == 0:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        while True:
            libc.pause()


def compute(seconds: float) -> int:
    """Really compute for a while, with a stack that moves."""
    end = time.monotonic() + seconds
    total = 0
    while time.monotonic() < end:
        total += _score(total) + _rank_candidates(total)
    return total


def _score(seed: int) -> int:
    return sum((seed + i) % 7 for i in range(20000))


def _rank_candidates(seed: int) -> int:
    return min((seed * i) % 1009 for i in range(5000))
