"""Defines the messages between agents and supervisor: only this module knows their form on the channel.

Both ends use these classes. On the channel (`wire`) a message is a JSON object with short keys: `t` is its kind, `n`
the node that sent it, and lists such as progress are plain arrays, since thousands of ranks send them every second.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Union

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent import values
from slurm_robust.supervise.agent.codec import Codec
from slurm_robust.supervise.agent.mount_messages import CheckMounts, MountsChecked
from slurm_robust.supervise.agent.stopped_messages import ContinueRank, RankContinued
from slurm_robust.supervise.agent.warm_messages import AskWarm, WarmAnswer

MAX_RECORDS, MAX_RECORD_CHARS = 32, 1024


class Hello(NamedTuple):
    """An agent has started."""

    node: str
    pid: int = 0


class Heartbeat(NamedTuple):
    """An agent lives, and has found this many ranks."""

    node: str
    ranks: int = 0


class RankFound(NamedTuple):
    """A rank's main process was found.

    Attributes:
        task: Slurm's number of the task that the rank belongs to; -1 for the rank's own number.
        nodes: How many nodes its step has; 0 or less if its environment does not say.
        ranked: Its environment has RANK: torchrun or a script has started it.
        python: The Python that runs the rank, as `rank_python` found it; empty for none.
    """

    node: str
    rank: int
    pid: int
    step_id: str
    world: int
    at_s: float
    task: int = -1
    nodes: int = 0
    ranked: bool = False
    python: str = ""


class RankGone(NamedTuple):
    """A rank's main process has ended; `task_lives` if torchrun or a shell of its task still runs."""

    node: str
    rank: int
    pid: int
    at_s: float
    task_lives: bool = False


class ProgressEntry(NamedTuple):
    """The last report of a rank; NaN and infinity are the texts `nan` and `inf`, None is unknown.

    `age_s` is how long before the sending the rank showed progress: the nodes' times of day may differ by hours.
    `loss_call` is the number of the call that gave the loss, counted like `calls`; 0 if unknown.
    """

    rank: int
    step: int
    phase: str
    age_s: float
    calls: int
    loss: float | str | None
    grad_norm: float | str | None
    phase_timeout_s: float | None
    loss_call: int = 0


class ProgressReport(NamedTuple):
    """Progress of the ranks for which it changed."""

    node: str
    progress: tuple[ProgressEntry, ...]


class TimingEntry(NamedTuple):
    """Seconds that a step took a rank: in all, own work, communication. None is unknown; not checked here."""

    rank: int
    step: int
    total_s: Any
    compute_s: Any
    communication_s: Any


class TimingReport(NamedTuple):
    """Step timings that were not sent before."""

    node: str
    timings: tuple[TimingEntry, ...]


class FirstStep(NamedTuple):
    """The first step that a rank reported (-1 if it has not reported one), and how long ago."""

    step: int
    age_s: float


class RankStart(NamedTuple):
    """A rank's start-up marks (name → how long ago, seconds), parallel layout and first step."""

    node: str
    rank: int
    marks: dict[str, float]
    layout: dict[str, int]
    first: FirstStep


class RankState(NamedTuple):
    """The state of a rank's processes: of its main process, if that has such a state, else of another process.

    `T` is stopped by a signal, `t` is held by a debugger, `D` is uninterruptible, and empty means that all are well.
    """

    node: str
    rank: int
    state: str
    pid: int


class TaskEnded(NamedTuple):
    """The end of a task, as slurmstepd told the SPANK plugin.

    Attributes:
        code: Exit code; 0 if a signal ended the task.
        signal: Number of that signal, 0 for none.
        age_s: How long ago the task ended.
    """

    node: str
    step_id: str
    task: int
    code: int
    signal: int
    age_s: float


class CaptureTaken(NamedTuple):
    """The stacks of a node's ranks: a packed archive."""

    node: str
    capture_id: int
    packed: str


class RasTaken(NamedTuple):
    """The answer of NCCL's RAS service, packed."""

    node: str
    capture_id: int
    packed: str


class Cleaned(NamedTuple):
    """The pids (50 at most) that are left of an ended attempt."""

    node: str
    request_id: int
    left: tuple[int, ...]


class NodeFindings(NamedTuple):
    """The findings of a node's root service, as far as they concern this job.

    Attributes:
        problem: Why the service's file is not believed; empty if it is.
        unused: No rank has run on the node, so it is not known which GPUs the job would use there. Findings that turn
            out to concern the job are sent again.
    """

    node: str
    findings: tuple[NodeFinding, ...] = ()
    problem: str = ""
    unused: bool = False


class KernelRecords(NamedTuple):
    """Lines of a node's kernel log that may tell of a fault which concerns this job: at most `MAX_RECORDS` lines.

    Attributes:
        at_s, since_boot_s: When the lines were sent, by the node's clocks: seconds since the epoch, and since its boot.
        records: The lines as `/dev/kmsg` gives them, each cut to `MAX_RECORD_CHARS`.
        gpus: PCI address (`0000:9b:00`) → number of the GPU's device file.
        driver: Major version of NVIDIA's driver; 0 if it is not known.
        unused: No rank has run on the node, as in `NodeFindings`.
        since_s: The records are not older than this, in seconds since the epoch; 0 if that is not known.
    """

    node: str
    at_s: float
    since_boot_s: float
    records: tuple[str, ...]
    gpus: dict[str, int]
    driver: int = 0
    unused: bool = False
    since_s: float = 0.0


class PortTraffic(NamedTuple):
    """The number of bytes that all RDMA ports of a node have moved in the last seconds; sent if it has changed."""

    node: str
    seconds: float
    moved_bytes: int


class Flushing(NamedTuple):
    """An agent that ends still has checkpoints to write."""

    node: str


class Flushed(NamedTuple):
    """An agent that ends has written all its checkpoints."""

    node: str


class Malformed(NamedTuple):
    """A line from a node that is not one of these messages. It is never sent."""

    node: str


FromAgent = Union[
    Hello, Heartbeat, RankFound, RankGone, ProgressReport, TimingReport, RankStart, RankState, TaskEnded, CaptureTaken,
    RasTaken, Cleaned, NodeFindings, KernelRecords, PortTraffic, WarmAnswer, MountsChecked, RankContinued, Flushing,
    Flushed,
    Malformed,
]  # fmt: skip
Handler = Callable[[FromAgent], None]


class WatchAttempt(NamedTuple):
    """Watch this attempt of the job from now on."""

    attempt: str


class TakeCapture(NamedTuple):
    """Send the stacks of all ranks.

    Attributes:
        round_number: The number of the capture within the incident.
        timeout_s: The limit of the whole capture.
        ras_node: The node whose agent also asks NCCL's RAS service.
        with_recorder: Collect flight-recorder dumps, too.
    """

    capture_id: int
    round_number: int = 1
    timeout_s: float = 10.0
    ras_node: str = ""
    with_recorder: bool = True


class CleanUp(NamedTuple):
    """Kill the rest of an ended attempt, and report processes that remain.

    Attributes:
        request_id: A request is carried out only once for each id; with 0 it is always carried out.
        step_ids: The attempt's steps: processes of these steps that hold a GPU are killed even without our environment.
    """

    request_id: int
    attempt: str = ""
    timeout_s: float = 10.0
    step_ids: tuple[str, ...] = ()


ToAgent = Union[WatchAttempt, TakeCapture, CleanUp, AskWarm, CheckMounts, ContinueRank]


def _progress(entries: Any) -> tuple[ProgressEntry, ...]:
    return tuple(
        ProgressEntry(
            values.whole(rank), values.whole(step), values.text(phase), values.seconds(age_s), values.whole(calls),
            values.measure(loss), values.measure(grad_norm), values.limit_s(timeout_s), *map(values.whole, loss_call),
        )
        for rank, step, phase, age_s, calls, loss, grad_norm, timeout_s, *loss_call in entries
    )  # fmt: skip


def _timings(entries: Any) -> tuple[TimingEntry, ...]:
    return tuple(TimingEntry(values.whole(rank), values.whole(step), *durations) for rank, step, *durations in entries)


_KEYS = {
    "node": "n",
    "step_ids": "steps",
    "at_s": "at",
    "progress": "r",
    "timings": "r",
    "state": "s",
    "signal": "sig",
    "capture_id": "id",
    "request_id": "id",
    "packed": "blob",
    "round_number": "round",
    "ras_node": "ras",
    "with_recorder": "recorder",
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "int": values.whole,
    "float": values.seconds,
    "str": values.text,
    "tuple[int, ...]": lambda numbers: tuple(map(values.whole, numbers)),
    "tuple[str, ...]": values.lines,
    "dict[str, float]": lambda marks: {values.text(name): values.seconds(age_s) for name, age_s in marks.items()},
    "dict[str, int]": lambda layout: {values.text(axis): values.whole(size) for axis, size in layout.items()},
    "FirstStep": lambda first: FirstStep(values.whole(first[0]), values.seconds(first[1])),
    "tuple[ProgressEntry, ...]": _progress,
    "tuple[TimingEntry, ...]": _timings,
    "tuple[NodeFinding, ...]": values.findings,
}
_FROM_AGENT: Codec[FromAgent] = Codec(
    "t",
    {
        "hello": Hello,
        "hb": Heartbeat,
        "rank": RankFound,
        "gone": RankGone,
        "p": ProgressReport,
        "t": TimingReport,
        "marks": RankStart,
        "state": RankState,
        "exit": TaskEnded,
        "cap": CaptureTaken,
        "ras": RasTaken,
        "clean": Cleaned,
        "found": NodeFindings,
        "kernel": KernelRecords,
        "traffic": PortTraffic,
        "warm": WarmAnswer,
        "continued": RankContinued,
        "mounts": MountsChecked,
        "flushing": Flushing,
        "flushed": Flushed,
    },
    _KEYS,
    _READERS,
)
_TO_AGENT: Codec[ToAgent] = Codec(
    "t",
    {
        "watch": WatchAttempt,
        "capture": TakeCapture,
        "clean": CleanUp,
        "warm": AskWarm,
        "mounts": CheckMounts,
        "continue": ContinueRank,
    },
    _KEYS,
    _READERS,
)


def encode(message: FromAgent | ToAgent) -> dict[str, Any]:
    """Return the JSON object that carries a message."""
    if isinstance(message, (WatchAttempt, TakeCapture, CleanUp, AskWarm, CheckMounts, ContinueRank)):
        return _TO_AGENT.encode(message)
    return _FROM_AGENT.encode(message)


def from_agent(raw: Mapping[str, Any]) -> FromAgent:
    """Return the message that an agent sent; `Malformed` if it is not a message of an agent."""
    try:
        return _FROM_AGENT.decode(raw)
    except ValueError:
        node = raw.get("n")
        return Malformed(values.text(node) if isinstance(node, str) else "")


def to_agent(raw: Mapping[str, Any]) -> ToAgent | None:
    """Return the message that the supervisor sent; None if it is not a message of the supervisor."""
    try:
        return _TO_AGENT.decode(raw)
    except ValueError:
        return None
