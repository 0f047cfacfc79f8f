"""How long a step stands still for a checkpoint.

Each way has a process of its own, forked from the one that made the state, so that all of them save the same pages.
They take turns, round after round, each save right after a plain copy: whatever else the machine does meets all of
them, and every save has a copy of the same moment to be held against. A turn ends when the save is on the disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ckpt import memory, ways
from ckpt.ways import COPY

_ANSWER_S = 300.0


@dataclasses.dataclass
class Found:
    """What was measured of one way, a value a round; seconds.

    Attributes:
        stall_s: Until the training may change its tensors.
        cpu_s: Processor time of all threads of the training meanwhile: a busy machine makes the stall longer, not this.
        call_s: Until the call returned.
        written_s: Until it was on the disk.
        copies: The stall, in plain copies of the moment before.
        extra_bytes: Memory beside the state, at most.
    """

    stall_s: list[float] = dataclasses.field(default_factory=list)
    cpu_s: list[float] = dataclasses.field(default_factory=list)
    call_s: list[float] = dataclasses.field(default_factory=list)
    written_s: list[float] = dataclasses.field(default_factory=list)
    copies: list[float] = dataclasses.field(default_factory=list)
    extra_bytes: int = 0


_Measured = Callable[[ways.Save, int, dict[str, Any]], Any]


class Runner:
    """A process that saves in one way, or in several that share its memory, when it is told to.

    Args:
        together: The ways.
        state: What is saved.
        folder: Where to.
        measured: What it does with a way to save, a step's number and the state, and tells; saves, unless named.
    """

    def __init__(
        self, together: tuple[str, ...], state: dict[str, Any], folder: Path, measured: _Measured | None = None
    ) -> None:
        self.together = together
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, together, state, folder, measured or _saved))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid or 0

    def begin(self, what: str, step: int = 0) -> None:
        """Have it do something: `prepare`, `end`, or save in a way."""
        self._pipe.send((what, step))

    def done(self, timeout_s: float = _ANSWER_S) -> bool:
        """Whether it is through."""
        return self._pipe.poll(timeout_s)

    def answer(self) -> Any:
        """What came of it.

        Raises:
            SystemExit: it failed, or takes too long.
        """
        try:
            if not self.done():
                raise SystemExit(f"{self.together[0]}: nothing in {_ANSWER_S:g} s")
            found = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise SystemExit(f"{self.together[0]}: its process has ended, out of memory?") from None
        if isinstance(found, str):
            raise SystemExit(f"{self.together[0]}: {found}")
        return found

    def ask(self, what: str, step: int = 0) -> Any:
        """Both."""
        self.begin(what, step)
        return self.answer()

    def end(self) -> None:
        """End it and what it has started."""
        with contextlib.suppress(OSError):
            self.begin("end")
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _serve(
    pipe: Connection, together: tuple[str, ...], state: dict[str, Any], folder: Path, measured: _Measured
) -> None:
    """Do what is told, until nobody tells any more."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    saves: dict[str, ways.Save] = {}
    if together[0] in ways.ASYNC:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # DCP's process tells of every save; what fails is raised here
    with contextlib.suppress(EOFError):
        while (order := pipe.recv())[0] != "end":
            what, step = order
            try:
                if what == "prepare":
                    saves = ways.prepared(together, state, folder)
                    pipe.send(0)
                else:
                    told = measured(saves[what], step, state)
                    ways.clear(together, folder)  # before the next one's turn
                    pipe.send(told)
            except BaseException:  # noqa: BLE001 (whatever it was, the other side is waiting)
                pipe.send(traceback.format_exc()[-3000:])
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)  # DCP's threads are not waited for


def _saved(save: ways.Save, step: int, _: dict[str, Any]) -> dict[str, float]:
    cpu_s = time.process_time()
    began_s = time.perf_counter()
    saved = save(step)
    called_s = time.perf_counter()
    saved.copied()
    copied_s = time.perf_counter()
    cpu_s = time.process_time() - cpu_s
    saved.written()
    return {
        "cpu_s": cpu_s,
        "call_s": called_s - began_s,
        "stall_s": copied_s - began_s,
        "written_s": time.perf_counter() - began_s,
    }


def measure(size_bytes: int, rounds: int, where: Path, say: Callable[[str], None]) -> tuple[int, dict[str, Found]]:
    """All ways, in turn.

    Args:
        size_bytes: Of the state, about.
        rounds: That count; one before them does not, which makes plans and starts processes.
        where: Where checkpoints go.
        say: Told what is done.

    Returns:
        The state's real size, and what was measured of each way.
    """
    # Two threads that copy together wait for the slower one: on a busy machine that is noise of its own.
    torch.set_num_threads(1)
    state = ways.training(size_bytes)
    found = {way: Found() for way in ways.WAYS}
    with tempfile.TemporaryDirectory(prefix="srobust-stall-", dir=where, ignore_cleanup_errors=True) as name:
        runners: list[Runner] = []
        try:
            for together in ways.PROGRAMS:
                folder = Path(name, together[0].replace(" ", "-"))
                folder.mkdir()
                runners.append(Runner(together, state, folder))
            before = {runner: memory.held_bytes(runner.pid) for runner in runners}
            for runner in runners:
                runner.ask("prepare")
            by_way = {way: runner for runner in runners for way in runner.together}
            order = [way for way in ways.WAYS if way != COPY]
            shuffle = random.Random(rounds).shuffle
            for number in range(rounds + 1):
                say(f"{size_bytes / 1e9:g} GB: round {number} of {rounds}")
                shuffle(order)
                for at, way in enumerate(order):
                    step = number * len(order) + at
                    os.sync()  # who does not flush would have others pay for it
                    copied = by_way[COPY].ask(COPY, step)
                    told = by_way[way].ask(way, step)
                    if number:
                        _note(found[COPY], copied, copied)
                        _note(found[way], told, copied)
            say(f"{size_bytes / 1e9:g} GB: memory")
            for runner in runners:
                # Once more for the memory: looking costs time.
                extra_bytes = _most(runner, (rounds + 1) * len(order)) - before[runner]
                for way in runner.together:
                    found[way].extra_bytes = extra_bytes
        finally:
            for runner in runners:
                runner.end()
    return sum(tensor.nbytes for tensor in ways.tensors(state)), found


def _note(found: Found, told: dict[str, float], copied: dict[str, float]) -> None:
    for key, value in told.items():
        getattr(found, key).append(value)
    found.copies.append(told["stall_s"] / copied["stall_s"])


def _most(runner: Runner, step: int) -> int:
    """The most memory that a way holds while it saves."""
    runner.begin(runner.together[0], step)
    most = 0
    while not runner.done(0.05):
        most = max(most, memory.held_bytes(runner.pid))
    runner.answer()
    return max(most, memory.held_bytes(runner.pid))


def ratio(found: dict[str, Found], way: str, other: str) -> float:
    """How many times as long the step stands still, by the medians of both: they took turns."""
    return statistics.median(found[way].stall_s) / statistics.median(found[other].stall_s)


def best(found: dict[str, Found]) -> str:
    """DCP's best `async_save`."""
    return min(ways.ASYNC, key=lambda way: statistics.median(found[way].stall_s))


def needed_bytes(size_bytes: int) -> int:
    """What measuring a state of that size takes, all ways together, and 128 MiB of programs each."""
    return int(size_bytes * (1 + sum(ways.PROGRAMS.values()))) + (len(ways.PROGRAMS) << 27)
