"""Reads a rank's process tree: which process is the training itself, and what the others are for."""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Sequence
from functools import lru_cache

from slurm_robust.localize.evidence import CapturedProcess, CapturedThread, RankCapture, StackFrame
from slurm_robust.localize.stacks.frames import by_identity, main_thread, own_frames, short_file, short_function
from slurm_robust.localize.stacks.known_names import STORES, Kind, WaitsOn
from slurm_robust.localize.stacks.place import StackPlace, place_of, waits_on


class ProcessRole(str, enum.Enum):
    """The purpose of a process of a rank's tree."""

    RANK = "rank"
    LOADER = "data loader"
    HELPER = "helper"
    BYSTANDER = "bystander"
    """Metrics, resource trackers, compile pools: such a process does not show whether training moves."""


_BYSTANDERS = re.compile(
    r"resource_tracker|multiprocessing\.forkserver|compile_worker|wandb|tensorboard|mlflow|neptune|comet|nvidia-smi|dcgm|"
    r"py-spy|prometheus|fluent|telegraf",
    re.IGNORECASE,
)
_BYSTANDER_FILES = ("wandb/", "tqdm/", "tensorboard/", "torch/utils/tensorboard/", "mlflow/", "neptune/", "comet_ml/",
                    "slurm_robust/", "prometheus_client/", "torch/_inductor/compile_worker/", "IPython/")  # fmt: skip
_IDLE_THREADS = ("QueueFeederThread",)
_PROGRAM = ("<module>", "_run_module_as_main", "_bootstrap")
"""The outermost frames of a main thread that is within its program."""
_FROZEN = re.compile(r"freez|refrigerator")
_owns_gil = operator.attrgetter("owns_gil")


def rank_process(rank: RankCapture) -> CapturedProcess | None:
    """Return the training process: the first with a stack (a shell may stand before it), else the first; or None."""
    if len(rank.processes) == 1:
        return rank.processes[0]
    for process in rank.processes:  # asked for ten times a rank: a generator takes twice the time
        if process.threads and not _is_bystander(process.command):
            return process
    return rank.processes[0] if rank.processes else None


def shuts_down(frames: Sequence[StackFrame]) -> bool:
    """Return whether the main thread with these frames, outermost first, is of an interpreter that shuts down.

    The program's own code has ended: the thread runs exit functions or destructors, or waits for other threads.
    """
    return not frames or short_function(frames[0].function) not in _PROGRAM


def rank_frames(rank: RankCapture) -> tuple[StackFrame, ...] | None:
    """Return the frames of the training process's main thread; None if they are not known."""
    process = rank_process(rank)
    thread = main_thread(process.threads) if process is not None else None
    return thread.frames if thread is not None else None


def role_of(process: CapturedProcess, training: CapturedProcess | None) -> ProcessRole:
    """Return what a process is for; `training` is the tree's `rank_process`."""
    if training is not None and process.pid == training.pid:
        return ProcessRole.RANK
    if _is_bystander(process.command):
        return ProcessRole.BYSTANDER
    thread = main_thread(process.threads)
    if process.command.startswith("pt_data_") or (thread is not None and _is_worker_loop(thread.frames, "")):
        return ProcessRole.LOADER
    return ProcessRole.HELPER


@lru_cache(maxsize=16384)
def _is_bystander(command: str) -> bool:
    return _BYSTANDERS.search(command) is not None


@by_identity
def _is_worker_loop(frames: tuple[StackFrame, ...], _: str) -> bool:
    return any(
        short_function(frame.function) == "_worker_loop" and short_file(frame.file).startswith("torch/utils/data/")
        for frame in frames
    )


def place(process: CapturedProcess) -> StackPlace:
    """Return the place at which a process's main thread stands."""
    thread = main_thread(process.threads)
    if thread is None:
        return StackPlace(Kind.UNKNOWN)
    found = place_of(thread.frames, process.wchan)
    if found.kind is Kind.LOADER and found.label.startswith("_worker_loop "):
        # The worker waits for the next index: no work was asked of it.
        return StackPlace(Kind.IDLE, found.wait, found.label, found.anchor)
    return found


def rank_place(rank: RankCapture) -> StackPlace:
    """Return the place at which a rank stands: the place of its training process."""
    process = rank_process(rank)
    return StackPlace(Kind.UNKNOWN) if process is None else place(process)


def watched(rank: RankCapture) -> tuple[CapturedProcess, ...]:
    """Return the processes whose motion counts as the rank's motion, the training process first."""
    training = rank_process(rank)
    if training is None:
        return ()
    others = (p for p in rank.processes if p.pid != training.pid)
    return (training, *(p for p in others if role_of(p, training) is not ProcessRole.BYSTANDER))


def loaders(rank: RankCapture) -> tuple[CapturedProcess, ...]:
    """Return the rank's data loader workers."""
    training = rank_process(rank)
    return tuple(p for p in rank.processes if role_of(p, training) is ProcessRole.LOADER)


def stopped(rank: RankCapture) -> CapturedProcess | None:
    """Return a process of the rank that a signal, a debugger or a cgroup freezer holds; None if there is none."""
    return next((p for p in watched(rank) if p.state in ("T", "t") or _FROZEN.search(p.wchan)), None)


def died(rank: RankCapture) -> CapturedProcess | None:
    """Return the training process or a data loader if it is a zombie; other zombies are common and harmless."""
    training, roles = rank_process(rank), (ProcessRole.RANK, ProcessRole.LOADER)
    return next((p for p in watched(rank) if p.state in ("Z", "X") and role_of(p, training) in roles), None)


def uninterruptible(rank: RankCapture) -> CapturedProcess | None:
    """Return a process of the rank in D state; None if there is none."""
    return next((p for p in watched(rank) if p.state == "D"), None)


def stores(process: CapturedProcess) -> str:
    """Return the function in which a process saves or loads; empty if its main thread is in no such function."""
    thread = main_thread(process.threads)
    functions = (short_function(frame.function) for frame in own_frames(thread.frames)) if thread is not None else ()
    return next((function for function in functions if STORES.search(function)), "")


def gil_holder(rank: RankCapture) -> CapturedThread | None:
    """Return a side thread of the training process that has the GIL while the main thread sleeps; None if none has.

    Bystander threads do not count. Many programs have such a thread for a moment: it only holds the rank if it shows
    the same stack again and again.
    """
    training = rank_process(rank)
    # Nearly no rank has such a thread, so this first check runs in C.
    if training is None or training.state != "S" or not any(map(_owns_gil, training.threads)):
        return None
    holders = (t for t in training.threads if t.owns_gil and not t.main and t.frames)
    return next((thread for thread in holders if not is_bystander_thread(thread.frames)), None)


def all_threads_wait(process: CapturedProcess, *, but_main: bool = False) -> bool:
    """Return whether every thread visibly waits (lock, queue, accept), so that none works outside Python's sight."""
    for thread in process.threads:
        if but_main and thread.main:
            continue
        frames = own_frames(thread.frames)
        if not frames or thread.name in _IDLE_THREADS or is_bystander_thread(frames):
            continue
        if thread.active:
            return False
        if waits_on(frames) is WaitsOn.LOCK or short_function(frames[-1].function) in ("accept", "select", "poll"):
            continue
        return False
    return True


def is_bystander_thread(frames: tuple[StackFrame, ...]) -> bool:
    """Return whether it is a thread of a metrics writer or progress bar, by the first frame outside threading."""
    files = (short_file(frame.file) for frame in frames)
    return next((file for file in files if file != "threading.py"), "").startswith(_BYSTANDER_FILES)
