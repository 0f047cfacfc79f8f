"""What can be seen of a simulated world at one moment: processes, stacks, progress, recorders."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from campaign.engine import World
from campaign.faults import Look
from campaign.parts import FOREVER_S, Entry, Host
from campaign.pipelines import loads
from campaign.places import FEEDER, FRAMES, HOLDER, PUBLISHER, WORKER
from campaign.programs import Job

RECORDED = 6
"""Completed entries that are kept beside the pending ones: numbers in a process are matched to groups by them."""


@dataclass(frozen=True)
class ThreadView:
    """A thread's frames (`function file:line`, outermost first) and whether it runs, or holds the GIL."""

    frames: tuple[str, ...]
    name: str = "MainThread"
    active: bool = False
    owns_gil: bool = False


@dataclass(frozen=True)
class ProcessView:
    """A process of a rank; the first is the training itself."""

    pid: int
    command: str
    state: str
    wchan: str
    cpu_s: float
    io_bytes: int
    threads: tuple[ThreadView, ...]
    error: str = ""


@dataclass(frozen=True)
class RankView:
    """A rank; no processes: it is gone."""

    rank: int
    node: str
    processes: tuple[ProcessView, ...]
    step: int
    phase: str
    age_s: float


@dataclass(frozen=True)
class Scene:
    """All ranks that answered, and the nodes that did not."""

    at_s: float
    ranks: tuple[RankView, ...]
    silent: tuple[str, ...]


@dataclass(frozen=True)
class EntryView:
    """One operation in a recorder that is not complete."""

    group: str
    number: int
    name: str
    seq: int
    order: int
    peer: int
    state: str
    size: int
    at_s: float


@dataclass(frozen=True)
class RecorderView:
    """One rank's flight recorder: pending operations; by group's number (last enqueued, last completed)."""

    rank: int
    pending: tuple[EntryView, ...]
    counters: Mapping[int, tuple[int, int]]
    numbers: Mapping[int, str]
    last_at_s: float


@dataclass(frozen=True)
class Eyes:
    """How well this case's evidence is gathered.

    Attributes:
        unseen: Ranks that are missing from captures.
        unread: Ranks whose processes could not be read.
        undumped: Ranks whose recorder file is missing.
        source: `site` or `checkout`: where Megatron's files lie.
        timing: The recorder knows when an operation started on the device.
        base_step: Steps before the simulated ones.
        publishing: Whose process has a side thread that is at work and holds the GIL now and then: nobody's, that of
            the first rank, or all.
    """

    unseen: frozenset[int] = frozenset()
    unread: frozenset[int] = frozenset()
    undumped: frozenset[int] = frozenset()
    source: str = "site"
    timing: bool = False
    base_step: int = 1000
    publishing: str = "nobody"


def look_at(world: World, job: Job, looks: Mapping[int, Look], eyes: Eyes) -> Scene:
    """Every rank as its node's agent would capture it now."""
    ranks = []
    for rank in range(job.layout.world):
        node = job.layout.node(rank)
        if rank in eyes.unseen or node in world.silent_nodes:
            continue
        host = world.host_of(rank)
        processes = _processes(world, job, rank, looks.get(rank), eyes)
        age_s = world.now_s - host.stepped_s
        ranks.append(RankView(rank, node, processes, eyes.base_step + host.step - 1, host.phase, age_s))
    return Scene(world.now_s, tuple(ranks), tuple(sorted(world.silent_nodes)))


def _processes(world: World, job: Job, rank: int, look: Look | None, eyes: Eyes) -> tuple[ProcessView, ...]:
    if look is not None and look.gone:
        return ()
    host = world.host_of(rank)
    struck = look is not None
    look = look or _healthy(job, host)
    stood_s = world.now_s - host.since_s
    pid = 5000 + 40 * rank
    busy_io = host.act.kind == "file" and not struck
    threads: tuple[ThreadView, ...] = (ThreadView(_frames(job, host, stood_s, struck), active=look.cpu > 0.5),)
    if look.holder:
        threads += (ThreadView(HOLDER, "metrics", active=True, owns_gil=True),)
    publishes = eyes.publishing == "all" or (eyes.publishing == "first" and rank == 0)
    at_work = publishes and not look.holder and look.state != "T" and "freez" not in look.wchan
    if publishes and not look.holder:
        threads += (_publisher(rank, world.now_s if at_work else 0.0),)
    cpu_s = 100.0 + (look.cpu + 0.3 * at_work) * stood_s
    io_bytes = 10_000_000 + (int(stood_s * 50_000_000) if busy_io else 0)
    training = ProcessView(pid, "python train.py", look.state, look.wchan, cpu_s, io_bytes, threads)
    if rank in eyes.unread:
        return (ProcessView(pid, "python train.py", look.state, look.wchan, cpu_s, io_bytes, (), "permission denied"),)
    if job.framework == "megatron" and not loads(job, rank):
        return (training,)
    fetching = host.act.kind == "load" and not struck
    frames = WORKER[look.worker or ("fetch" if fetching else "idle")]
    wchan = look.worker_wchan if look.worker else "" if fetching else "pipe_read"
    worker_cpu_s = 40.0 + (stood_s if fetching else 0.0)
    state = look.worker_state if look.worker else "S"
    feeder = ThreadView(FEEDER, "QueueFeederThread")
    worker = ProcessView(pid + 1, "pt_data_worker", state, wchan, worker_cpu_s, 90_000, (ThreadView(frames), feeder))
    return (training, worker)


def _publisher(rank: int, now_s: float) -> ThreadView:
    """A side thread at work: another line at each look, and the GIL in its hands one time in three."""
    name, _, line = PUBLISHER[-1].rpartition(":")
    drawn = zlib.crc32(f"{rank} {now_s:.3f}".encode())
    frames = (*PUBLISHER[:-1], f"{name}:{int(line) + drawn % 12}")
    return ThreadView(frames, "publisher", active=True, owns_gil=drawn // 12 % 3 == 0)


def _healthy(job: Job, host: Host) -> Look:
    """A rank that nothing struck: it spins where it waits for a GPU, and works where it works."""
    kind = host.act.kind
    if kind in ("cpu", "kernel", "file"):
        waits = bool(host.waits) or host.retry
        return Look("R" if not waits or job.depth else "S", "", 0.3 if kind == "file" else 1.0)
    if kind == "load":
        return Look("S", "poll_schedule_timeout")
    return Look("R", "", 1.0) if job.depth else Look("S", "futex_wait_queue")


def _frames(job: Job, host: Host, stood_s: float, struck: bool) -> tuple[str, ...]:
    frames = FRAMES[job.framework][host.act.place or "start"]
    if host.act.kind in ("cpu", "file") and not struck and host.act.place in ("evaluate", "save"):
        # It is at work: the innermost line is another one at each look.
        name, _, line = frames[-1].rpartition(":")
        return (*frames[:-1], f"{name}:{int(line) + int(stood_s * 7) % 9}")
    return frames


@dataclass(frozen=True)
class _Tape:
    """What a host has recorded, before it is told as one rank's: numbers count from the group's first."""

    counters: Mapping[int, tuple[str, int, int]]
    kinds: Mapping[int, str]
    used: frozenset[str]
    pending: tuple[Entry, ...]
    last_at_s: float


def _tape(host: Host) -> _Tape:
    counters: dict[int, tuple[str, int, int]] = {}
    for entry in host.entries:
        if not entry.p2p:
            _, enqueued, completed = counters.get(entry.number, ("", 0, 0))
            done = entry.item.done_s < FOREVER_S
            counters[entry.number] = entry.kind, max(enqueued, entry.seq), max(completed, entry.seq * done)
    pending = tuple(entry for entry in host.entries if entry.item.done_s == FOREVER_S)
    kinds = {entry.number: entry.kind for entry in (*pending, *host.entries[-RECORDED:])}
    used = frozenset(entry.kind for entry in host.entries)
    return _Tape(counters, kinds, used, pending, max((e.item.enqueued_s for e in host.entries), default=0.0))


def recorders_of(world: World, ranks: Iterable[int], eyes: Eyes) -> Iterator[RecorderView]:
    """What these ranks' flight recorders would write now."""
    tapes: dict[int, _Tape] = {}
    for rank in ranks:
        host, shift = world.host_of(rank), world.cast.shift(rank)
        tape = tapes.get(host.rank)
        if tape is None:
            tape = tapes[host.rank] = _tape(host)
        names = {kind: world.layout.group(kind, rank).name for kind in tape.used}
        base = {kind: 100 + 37 * int(name) % 9000 for kind, name in names.items()}
        pending = []
        for entry in tape.pending:
            op = entry.item.op
            peer = -1
            if entry.p2p and op is not None:
                peer = shift + (op.members[1] if op.members[0] == host.rank else op.members[0])
            state = "started" if eyes.timing and entry.item.ready_s < FOREVER_S else "scheduled"
            seq, at_s = base[entry.kind] + entry.seq, entry.item.enqueued_s
            pending.append(
                EntryView(names[entry.kind], entry.number, entry.name, seq, entry.order, peer, state, entry.size, at_s)
            )
        counters = {n: (base[kind] + sent, base[kind] + done) for n, (kind, sent, done) in tape.counters.items()}
        numbers = {number: names[kind] for number, kind in tape.kinds.items()}
        yield RecorderView(rank, tuple(pending), counters, numbers, tape.last_at_s)
