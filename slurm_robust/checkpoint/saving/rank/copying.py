"""Copies many tensors in a step, with as many threads as the rank has cores of its own.

One core reads and writes 10 to 20 GB/s, a node's memory many times that. torchrun gives torch one thread a rank, so a
plain copy of all tensors leaves most of that bandwidth unused. Here threads take tensors from a queue, fewer each time:
a thread that waits for a core delays the others only briefly, and one that gets no core delays none.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence

import torch

MOST_THREADS = 4
"""The most threads of a rank; with eight ranks a node, they use all of its memory bandwidth."""
_UNIT_BYTES = 8 << 20
_LEAST_BYTES = 64 << 20
"""A smaller copy ends before another thread gets a core."""
_LEAST_UNITS, _LEAST_TURNS = 4, 32
"""A thread takes at least so many units at once, and more if that leaves so many turns: each may wait for the GIL."""
Pairs = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Targets, and their sources."""


def threads_here(env: Mapping[str, str] = os.environ) -> int:
    """Return how many threads may copy: this rank's share of its cores.

    If torch has several threads itself, the result is 1: torch's threads copy, and more would compete for the same
    cores.
    """
    if torch.get_num_threads() > 1:
        return 1
    # torchrun and Slurm say how many ranks share the cores; Slurm's value is a list such as `8(x2),4`.
    ranks_here = env.get("LOCAL_WORLD_SIZE") or env.get("SLURM_STEP_TASKS_PER_NODE") or "1"
    match = re.match(r"\d+", ranks_here)
    ranks = max(1, int(match[0])) if match else 1
    cores = len(os.sched_getaffinity(0))
    if cores * ranks <= (os.cpu_count() or 1):
        ranks = 1  # bound to cores of its own
    return max(1, min(MOST_THREADS, cores // ranks))


def units(into: Sequence[torch.Tensor], out: Sequence[torch.Tensor], unit_bytes: int = _UNIT_BYTES) -> list[Pairs]:
    """Cut a copy into parts of about `unit_bytes`: large tensors into slices, small ones together."""
    found: list[Pairs] = []
    targets: list[torch.Tensor] = []
    sources: list[torch.Tensor] = []
    waiting_bytes = 0
    for target, source in zip(into, out, strict=True):
        if source.nbytes > unit_bytes and _can_be_cut(target, source):
            count = max(1, unit_bytes // source.element_size())
            cut = zip(torch.split(target.view(-1), count), torch.split(source.view(-1), count), strict=True)
            found += [([one], [other]) for one, other in cut]
            continue
        targets.append(target)
        sources.append(source)
        waiting_bytes += source.nbytes
        if waiting_bytes >= unit_bytes:
            found.append((targets, sources))
            targets, sources, waiting_bytes = [], [], 0
    if targets:
        found.append((targets, sources))
    return found


def _can_be_cut(target: torch.Tensor, source: torch.Tensor) -> bool:
    plain = type(source) in (torch.Tensor, torch.nn.Parameter)
    return plain and target.shape == source.shape and target.is_contiguous() and source.is_contiguous()


def here(into: list[torch.Tensor], out: list[torch.Tensor]) -> None:
    """Copy tensors by this thread alone; `out` may be on any device. Raises RuntimeError if torch cannot copy one."""
    if into:
        with torch.no_grad():
            torch._foreach_copy_(into, out)


class ThreadedCopy:
    """A copy by so many other threads, while this one does something else; in `wait` this thread copies, too.

    The sources, `out`, must not change before `wait` returns.
    """

    def __init__(self, into: list[torch.Tensor], out: list[torch.Tensor], threads: int) -> None:
        with torch.no_grad():
            self._waiting = units(into, out)
        self._threads = threads + 1
        self._most = max(_LEAST_UNITS, len(self._waiting) // _LEAST_TURNS)
        self._at = self._taken = 0
        self._left: list[Pairs] = []
        """Units that another thread could not copy."""
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        with contextlib.suppress(RuntimeError):  # a limit on processes: then `wait` copies everything
            for _ in range(threads):
                # threading.Thread.start waits until the thread runs, which may be long on a busy node.
                _thread.start_new_thread(self._help, ())

    @property
    def half(self) -> bool:
        """Whether about half of it is copied."""
        return 2 * self._at >= len(self._waiting)

    def wait(self, took: Callable[[], None] = lambda: None) -> None:
        """Return when all of it is copied; `took` is called before each part that this thread copies.

        Raises:
            RuntimeError: torch cannot copy a part of it; others may be copied.
        """
        try:
            while (pairs := self._take()) is not None:
                try:
                    took()
                    here(*pairs)
                finally:
                    self._through()
            with self._changed:
                self._changed.wait_for(lambda: not self._taken)
            for pairs in self._left:
                here(*pairs)
        except BaseException as error:  # for example by a signal handler: no thread begins another part
            self._error = error
            raise

    def _help(self) -> None:
        """Copy on another thread; units that it cannot copy are left to the first thread.

        In a forked process, for example, torch's thread pool may not exist yet for a new thread.
        """
        while (pairs := self._take()) is not None:
            try:
                here(*pairs)
            except BaseException:  # noqa: BLE001 (raised if the first thread fails at it, too)
                self._left.append(pairs)
                self._through()
                return
            self._through()

    def _through(self) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify_all()

    def _take(self) -> Pairs | None:
        """Return the next units, many at first and few at the end."""
        with self._changed:
            left = len(self._waiting) - self._at
            if not left or self._error is not None:
                return None
            count = max(1, min(self._most, left // (2 * self._threads)))
            taken = self._waiting[self._at : self._at + count]
            self._at += count
            self._taken += 1
        return [one for pair in taken for one in pair[0]], [one for pair in taken for one in pair[1]]


def copy(
    into: list[torch.Tensor], out: list[torch.Tensor], threads: int, half: Callable[[], None] = lambda: None
) -> None:
    """Copy tensors on the CPU by at most so many threads, including this one, and return when all of it is done.

    `half` is called once, when about half of it is copied. Raises RuntimeError if torch cannot copy one of them; others
    may be copied.
    """
    if threads == 1 or sum(source.nbytes for source in out) < _LEAST_BYTES:
        middle = len(into) // 2
        here(into[:middle], out[:middle])
        half()
        here(into[middle:], out[middle:])
        return
    beside = ThreadedCopy(into, out, threads - 1)
    reported = False

    def took() -> None:
        nonlocal reported
        if beside.half and not reported:
            reported = True
            half()

    beside.wait(took)
    if not reported:
        half()
