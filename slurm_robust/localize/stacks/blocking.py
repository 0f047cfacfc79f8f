"""Says what holds a rank, and how long the rank must stand still before that counts as the reason of a hang.

How long a rank must stand still depends on what holds it. After that time the rank is known to be held; what is done
about it, and when, depends on the grade of the evidence. If no time can show that the rank is held, the patience is
None, and the site's action limit decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_robust.localize.evidence import CapturedProcess, RankCapture
from slurm_robust.localize.grades import Ground
from slurm_robust.localize.stacks.frames import label
from slurm_robust.localize.stacks.known_names import Kind, WaitsOn
from slurm_robust.localize.stacks.motion import Stillness
from slurm_robust.localize.stacks.place import StackPlace, waits_on
from slurm_robust.localize.stacks.process_tree import (
    all_threads_wait,
    died,
    gil_holder,
    loaders,
    place,
    rank_process,
    stopped,
    stores,
    uninterruptible,
)


@dataclass(frozen=True)
class Patience:
    """The number of captures in a row, and their time span, over which a rank must stand still."""

    captures: int
    span_s: float

    def met_by(self, still: Stillness) -> bool:
        """Return whether a rank has stood still for as long."""
        return still.captures >= self.captures and still.span_s >= self.span_s


SURE = Patience(2, 2.0)
"""A stopped or dead process does not continue by itself. Two captures, since py-spy may stop a process for a moment."""
BLOCKED = Patience(2, 4.0)
"""Every thread that matters waits for another: a loader's deadlock."""
HELD = Patience(3, 8.0)
"""A lock below Python, no processor time and no bytes moved in the whole tree: acted on within ten seconds."""
LIKELY = Patience(3, 20.0)
"""A timer, or native code: longer than the usual cap of retries with back-off (20 s)."""
SLOW = Patience(3, 120.0)
"""For storage and network: only time tells a slow answer from no answer."""
CONFIDENCE_ONE_CAPTURE = 0.6
"""The highest confidence with a single capture, which does not show any motion."""


@dataclass(frozen=True)
class Blocking:
    """The thing that holds a rank, as a phrase, and how long it must last to count.

    Attributes:
        what: A phrase for the short sentence.
        detail: Further facts that are too long for that sentence.
        infrastructure: Its node may be the reason: a stopped or uninterruptible process, or the kernel's storage.
        confidence: How sure it is that the cause is here; `docs/localization.md` says which values are measured.
        by_gil: A side thread that has the interpreter's lock holds the rank.
        by_loader: The data loader holds the rank. Without evidence below Python, the program is at fault as often as
            the node.
        ground: The kind of evidence.
        stands: The rank stands in code of its own that is not known to take long by nature.
    """

    what: str
    patience: Patience | None
    infrastructure: bool
    confidence: float
    detail: str = ""
    by_gil: bool = False
    by_loader: bool = False
    ground: Ground = Ground.HELD
    stands: bool = False


_BY_WAIT: dict[WaitsOn, tuple[Patience, float]] = {
    WaitsOn.LOCK: (BLOCKED, 0.85),
    WaitsOn.NATIVE_LOCK: (HELD, 0.8),
    WaitsOn.SLEEP: (LIKELY, 0.75),
    WaitsOn.NONE: (LIKELY, 0.75),
    WaitsOn.CHILD: (SLOW, 0.7),
    WaitsOn.NETWORK: (SLOW, 0.7),
    WaitsOn.STORAGE: (SLOW, 0.7),
}


def blocking(rank: RankCapture) -> Blocking:
    """Return what holds this rank, which is known to be outside the collective that its peers wait in."""
    training = rank_process(rank)
    if training is None:
        return Blocking("it is gone, and its exit was not seen", BLOCKED, False, 0.85, ground=Ground.ENDED)
    if (held := stopped(rank)) is not None:
        return _stopped(training, held)
    if (zombie := died(rank)) is not None:
        return Blocking(
            f"process {zombie.pid} is dead and nobody has noticed (zombie)", SURE, True, 0.9, ground=Ground.STOPPED
        )
    return _alive(rank, training)


def _alive(rank: RankCapture, training: CapturedProcess) -> Blocking:
    where = place(training)
    announced = rank.progress.phase if rank.progress is not None else "train"
    slow = where.slow_by_nature if announced == "train" else f"the phase {announced}"
    slow = "" if where.kind is Kind.LOADER else slow
    if (stuck := uninterruptible(rank)) is not None:
        wchan = f", waiting in the kernel's {stuck.wchan}" if stuck.wchan.strip("0") else ""
        what = f"process {stuck.pid} is uninterruptible (D){wchan}"
        if slow := slow or stores(training) or stores(stuck):
            # One write of a large file to slow storage takes its time, and its bytes count only at its end. A file
            # system that is dead looks the same, and leaves a process that a restart cannot end.
            detail = f"in {slow} at {where.label}"
            return Blocking(what, SLOW, False, 0.9, detail, ground=Ground.SLOW_STORAGE)
        return Blocking(what, HELD, True, 0.9, ground=Ground.UNINTERRUPTIBLE)
    if slow:
        # Checkpoints, evaluation, compilation, start-up: they may rightly stand still for long.
        return Blocking(f"it is in {slow} at {where.label}", None, False, 0.3)
    if where.kind is Kind.LOADER:
        return _loader(rank, training, where)
    if where.kind is Kind.UNKNOWN:
        return Blocking(f"it has no stack ({training.error[:80] or 'not captured'})", None, False, 0.3)
    return _in_program(rank, training, where)


def _in_program(rank: RankCapture, training: CapturedProcess, where: StackPlace) -> Blocking:
    if (holder := gil_holder(rank)) is not None:
        what = f"its thread {holder.name or holder.os_thread_id} holds the GIL at {label(holder.frames[-1])}"
        return Blocking(what, LIKELY, False, 0.8, f"the main thread is at {where.label}", by_gil=True)
    if where.wait is WaitsOn.LOCK and all_threads_wait(training):
        return Blocking(f"it waits for {where.wait.value} at {where.label}", LIKELY, False, 0.7)
    return Blocking(f"it stands at {where.label} ({where.wait.value})", None, False, 0.75, stands=True)


def _stopped(training: CapturedProcess, held: CapturedProcess) -> Blocking:
    which = "its process" if held.pid == training.pid else "its helper process"
    if held.state == "t":
        return Blocking(f"{which} {held.pid} is held by a debugger", None, False, 0.6, ground=Ground.STOPPED)
    how = "stopped (SIGSTOP)" if held.state == "T" else f"frozen ({held.wchan})"
    return Blocking(f"{which} {held.pid} is {how}", SURE, False, 0.95, ground=Ground.STOPPED)


def _loader(rank: RankCapture, training: CapturedProcess, where: StackPlace) -> Blocking:
    workers = loaders(rank)
    waits_for_worker = where.wait is WaitsOn.LOCK
    busy = [(worker, place(worker)) for worker in workers]
    at_work = [(worker, found) for worker, found in busy if found.kind is not Kind.IDLE]
    if waits_for_worker and at_work:
        # The worker that takes the longest to be sure of decides.
        worker, found = max(at_work, key=lambda item: _BY_WAIT[_worker_wait(*item)][0].span_s)
        what, detail = f"its data loader hangs at {found.label}", f"process {worker.pid}"
        return _held(what, found, _worker_wait(worker, found), detail, below=_below_python(worker))
    if waits_for_worker and workers:
        what, wait = "it waits for its data loader, whose workers wait for work", WaitsOn.LOCK
        return _held(what, where, wait if all_threads_wait(training) else WaitsOn.NONE, f"at {where.label}")
    if waits_for_worker:
        what = "it waits for its data loader, whose workers were not seen"
        return _held(what, where, WaitsOn.NONE, f"at {where.label}")
    return _held(f"it loads data at {where.label}", where, where.wait, below=_below_python(training))


def _below_python(process: CapturedProcess) -> bool:
    """Return whether the kernel shows that the process waits for storage, so that its node may be the reason."""
    return waits_on((), process.wchan) is WaitsOn.STORAGE


def _worker_wait(worker: CapturedProcess, found: StackPlace) -> WaitsOn:
    if found.kind is Kind.UNKNOWN:
        return WaitsOn.NONE
    if found.wait is WaitsOn.LOCK and not all_threads_wait(worker):
        # A Python lock may be released by a thread that is at work below Python.
        return WaitsOn.NATIVE_LOCK
    if found.wait is WaitsOn.NATIVE_LOCK and worker.os_threads == len(worker.threads):
        # No native thread is there to release it: it is a plain lock, and only Python's threads could.
        return WaitsOn.LOCK if all_threads_wait(worker, but_main=True) else WaitsOn.NATIVE_LOCK
    if found.wait is WaitsOn.NATIVE_LOCK and worker.os_threads > len(worker.threads):
        # A native pool that it waits for: reading, decoding, fetching.
        return WaitsOn.NONE
    return found.wait


def _held(what: str, found: StackPlace, wait: WaitsOn, detail: str = "", *, below: bool = False) -> Blocking:
    """Return what a loader that hangs means: its node's fault if the kernel shows it; else the rank's, at first."""
    patience, confidence = _BY_WAIT[wait]
    detail_text = ", ".join(part for part in (detail, f"held by {wait.value}") if part)
    if found.slow_by_nature:
        patience, confidence, detail_text = SLOW, 0.6, f"{detail_text}, in {found.slow_by_nature}"
    return Blocking(what, patience, below, confidence, detail_text, by_loader=True)
