"""Says what a thread is doing: where it stands, and what it waits for there.

These are two separate questions. *Kind* is the part of a training program that the thread is in, read from the
innermost frames outward. *WaitsOn* is what holds the thread there, read from the innermost frames or, if they end in a
call into native code, from the kernel's wait channel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from slurm_robust.localize.evidence import StackFrame
from slurm_robust.localize.stacks.frames import by_identity, label, own_frames, short_file, short_function
from slurm_robust.localize.stacks.known_names import (
    LOOSE,
    PRIMITIVES,
    RENDEZVOUS,
    SLOW_NAMES,
    STARTUP_CALLS,
    TIGHT,
    WCHAN,
    WRAPPERS,
    Kind,
    WaitsOn,
)


@dataclass(frozen=True)
class StackPlace:
    """The place at which a thread stands.

    Attributes:
        label: `function (file:line)` of the frame that names the place.
        anchor: Number of outermost own frames that name the place: deeper frames may change while the thread waits.
        slow_by_nature: Word for work that may rightly take long (evaluation, checkpoint, compilation, download,
            start-up); empty for any other work.
    """

    kind: Kind
    wait: WaitsOn = WaitsOn.NONE
    label: str = ""
    anchor: int = 0
    slow_by_nature: str = ""

    @property
    def waits_for_peers(self) -> bool:
        """Whether the thread is in a collective, or waits for one, so that another rank's absence explains the wait."""
        return self.kind in (Kind.COLLECTIVE, Kind.BACKWARD, Kind.SYNC)

    @property
    def in_rendezvous(self) -> bool:
        """In the start-up, waiting for peers through a store, which is polled."""
        return self.kind is Kind.STARTUP and RENDEZVOUS.search(self.label) is not None


def waits_on(frames: tuple[StackFrame, ...], wchan: str = "") -> WaitsOn:
    """Return what holds a thread with these frames (outermost first); `wchan` is known for the main thread only."""
    for frame in reversed(frames):
        wait = _primitive(short_file(frame.file))
        # `Thread.run` is innermost: the thread is in a native function, not in threading's own code.
        if wait is None or short_function(frame.function) in ("run", "_bootstrap", "_bootstrap_inner"):
            break
        if wait is not WaitsOn.NONE:
            return wait
    return next((wait for wait, pattern in WCHAN if wchan and pattern.search(wchan)), WaitsOn.NONE)


@by_identity
def slow_around(frames: tuple[StackFrame, ...], _: str) -> str:
    """Return the word for work that takes long by nature and that these frames belong to; empty if there is none.

    A rank that waits at the end of a checkpoint or an evaluation waits for ranks that still work on it.
    """
    for frame in own_frames(frames):
        file, function = short_file(frame.file), short_function(frame.function)
        if _match(LOOSE, file, function) is Kind.CHECKPOINT:
            return Kind.CHECKPOINT.value
        if slow := _slow_name(file, function):
            return slow
    return ""


def _slow_name(file: str, function: str) -> str:
    match = None if file.startswith("torch/") else SLOW_NAMES.search(function)
    return match[0].strip("_").lower() if match else ""


@by_identity
def place_of(frames: tuple[StackFrame, ...], wchan: str) -> StackPlace:
    """Return where a thread with these frames stands (outermost first)."""
    frames = own_frames(frames)
    if not frames:
        return StackPlace(Kind.UNKNOWN)
    wait = waits_on(frames, wchan)
    slow = ""
    innermost = True
    for index in range(len(frames) - 1, -1, -1):
        file, function = short_file(frames[index].file), short_function(frames[index].function)
        if innermost:
            kind = _match(TIGHT, file, function)
            if kind is not None:
                return _tight_place(kind, frames, index, wait)
            # Collectives call no user code, so a collective further out than the user's own frame does not hold the
            # thread.
            innermost = _primitive(file) is not None or file in WRAPPERS
        kind = _match(LOOSE, file, function)
        if kind is Kind.LOADER:
            return StackPlace(kind, wait, label(_named(frames)), _trimmed(frames), slow)
        if kind is not None:
            return StackPlace(kind, wait, label(frames[index]), _trimmed(frames), kind.value)
        slow = slow or _slow_name(file, function)
    return StackPlace(Kind.USER, wait, label(_named(frames)), _trimmed(frames), slow)


def _tight_place(kind: Kind, frames: tuple[StackFrame, ...], index: int, wait: WaitsOn) -> StackPlace:
    # A collective is entered through several functions of one module (`_sync_buffers`, `_sync_module_buffers`, …).
    outer = index
    while outer > 0:
        frame = frames[outer - 1]
        if _match(TIGHT, short_file(frame.file), short_function(frame.function)) is not kind:
            break
        outer -= 1
    return StackPlace(kind, wait, label(frames[outer]), outer + 1, kind.value if kind is Kind.STARTUP else "")


def _named(frames: tuple[StackFrame, ...]) -> StackFrame:
    """Return the innermost frame that is not a waiting primitive: the line that people recognise."""
    return next((frame for frame in reversed(frames) if _primitive(short_file(frame.file)) is None), frames[-1])


def _trimmed(frames: tuple[StackFrame, ...]) -> int:
    """Return the number of frames without the innermost frames of a lock or poll, which vary while it waits."""
    count = len(frames)
    while count > 1 and _primitive(short_file(frames[count - 1].file)) in (WaitsOn.LOCK, WaitsOn.NONE):
        count -= 1
    return count


@lru_cache(maxsize=32768)
def _match(table: tuple[tuple[Kind, str, str], ...], file: str, function: str) -> Kind | None:
    if function in STARTUP_CALLS and file.startswith("torch/distributed/"):
        return Kind.STARTUP
    fitting = (k for k, start, functions in table if file.startswith(start) and re.fullmatch(functions, function))
    return next(fitting, None)


@lru_cache(maxsize=16384)
def _primitive(file: str) -> WaitsOn | None:
    return next((wait for wait, starts in PRIMITIVES if file.startswith(starts)), None)
