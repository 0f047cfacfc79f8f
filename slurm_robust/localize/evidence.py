"""Defines the evidence of an incident as frozen values: captured stacks, progress, exits and node signals.

The supervisor, or a reader of saved files, makes these values; the votes only read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_robust.core.model import Signal
from slurm_robust.diagnose.findings import Matcher
from slurm_robust.localize.dead_mounts import DeadMount
from slurm_robust.localize.ras import RasView
from slurm_robust.localize.recorder.dump import RankDump
from slurm_robust.localize.timings import StepTimings


@dataclass(frozen=True)
class StackFrame:
    """One frame of a Python (or native) stack. `file` is a path as the process sees it; `line` 0 if unknown."""

    function: str
    file: str
    line: int = 0


@dataclass(frozen=True)
class CapturedThread:
    """One thread's stack; frames outermost first.

    Attributes:
        main: True for the process's main thread.
        active: Whether py-spy takes the thread to be on a CPU.
        owns_gil: The thread holds the GIL.
    """

    frames: tuple[StackFrame, ...]
    name: str = ""
    os_thread_id: int = 0
    main: bool = False
    active: bool = False
    owns_gil: bool = False


@dataclass(frozen=True)
class CapturedProcess:
    """One process of a rank's tree (the rank itself, a data loader, a checkpoint writer).

    Attributes:
        pid: Process id on the node.
        ppid: Process id of the parent; the rank's own process is the first of `RankCapture.processes`.
        state: Letter of /proc/PID/status: R, S, D, T, t, Z, X; empty if it could not be read.
        cpu_s: User and system time used since its start, seconds; -1 if unknown.
        io_bytes: Bytes read and written since its start (rchar + wchar); -1 if unknown.
        wchan: Place in the kernel at which the process waits; empty if not readable.
        error: Why there are no threads, if there are none.
        os_threads: Number of its threads as the kernel counts them, native ones included; -1 if unknown.
        net_bytes: Bytes that its TCP connections have sent and received since the node's agent first looked at them,
            without connections to the store of the ranks (MASTER_PORT), and without connections that an earlier process
            of the rank's tree holds, too. -1 if unknown.
    """

    pid: int
    ppid: int
    state: str = ""
    command: str = ""
    cpu_s: float = -1.0
    io_bytes: int = -1
    wchan: str = ""
    threads: tuple[CapturedThread, ...] = ()
    error: str = ""
    os_threads: int = -1
    net_bytes: int = -1


@dataclass(frozen=True)
class Progress:
    """The progress of a rank. `age_s` is the time since its last sign of progress, at the moment of the capture.

    Attributes:
        step: Last completed step, -1 before the first.
        phase: startup, train, evaluate, checkpoint or idle.
    """

    step: int
    phase: str = "train"
    age_s: float = 0.0


@dataclass(frozen=True)
class RankCapture:
    """One rank at one moment. Without processes, the rank was gone."""

    rank: int
    node: str
    processes: tuple[CapturedProcess, ...] = ()
    progress: Progress | None = None


@dataclass(frozen=True)
class Capture:
    """All ranks at (nearly) one moment, seconds since the epoch."""

    at_s: float
    ranks: tuple[RankCapture, ...]
    missing_nodes: tuple[str, ...] = ()
    """Nodes whose agent did not answer in time."""


@dataclass(frozen=True)
class RankExit:
    """A rank that ended.

    Attributes:
        exit_code: The exit code; None if only the rank's disappearance was seen.
        signal: Number of the signal that ended the rank, 0 for none.
        at_s: When the end was noticed; the rank with the earliest end probably ended first.
        last_lines: Last lines of its output, oldest first.
        shared_lines: Lines of the job's output that do not name a rank: they are about the job, not about a node.
        oom_killed: The kernel or cgroup killed the rank for memory.
    """

    rank: int
    node: str
    at_s: float
    exit_code: int | None = None
    signal: int = 0
    last_lines: tuple[str, ...] = ()
    oom_killed: bool = False
    shared_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class RaisedException:
    """An exception that a rank has raised and that was not caught, as PyTorch's hook prints it.

    Attributes:
        at_s: When the exception was read, seconds since the epoch.
        lines: The rank's lines from the traceback on, oldest first.
    """

    at_s: float
    lines: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything known about one incident. Compared by identity, so that results can be kept for each evidence.

    Attributes:
        world_size: Number of ranks expected.
        rank_nodes: Rank → its node.
        captures: The captures, oldest first; two or more show whether a process moves.
        node_signals: XIDs, lost links, lost agents and nodes down in the minutes of the incident.
        layout: Parallel sizes as given (`{"tp": 2, "pp": 4}`), empty if unknown.
        layout_order: Order in which the sizes count ranks (`tp-pp-dp`), empty for Megatron's order.
        recorder: Rank → its latest flight-recorder dump, of ranks that left a dump.
        recorder_before: Rank → its dump of an earlier capture.
        timings: How long steps took each rank, None if not reported.
        ras: What NCCL's own service reported of the job, oldest first.
        raised: Rank → the exception that it has raised after its last progress. The rank need not have ended: to tear
            a process group down may take minutes, or may never end.
        rules: The rules by which last lines are read; None for the package's own rules.
        dead_mounts: Mount points that do not answer on a node, if other nodes were asked about them, too.
        last_sign_s: When a rank or the log last showed progress, seconds since the epoch; 0 if that is not known.
    """

    world_size: int
    rank_nodes: Mapping[int, str]
    captures: tuple[Capture, ...] = ()
    exits: tuple[RankExit, ...] = ()
    node_signals: tuple[Signal, ...] = ()
    layout: Mapping[str, int] = field(default_factory=dict)
    recorder: Mapping[int, RankDump] = field(default_factory=dict)
    layout_order: str = ""
    timings: StepTimings | None = None
    ras: tuple[RasView, ...] = ()
    raised: Mapping[int, RaisedException] = field(default_factory=dict)
    rules: Matcher | None = field(default=None, repr=False)
    recorder_before: Mapping[int, RankDump] = field(default_factory=dict)
    dead_mounts: tuple[DeadMount, ...] = ()
    last_sign_s: float = 0.0
