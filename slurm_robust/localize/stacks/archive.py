"""Reads and writes one node's stacks of one round, as the node agent sends them: `<node>.json.gz`.

An archive is gzipped JSON, content-addressed, so that a hundred data loaders that wait alike cost one stack:

    {"v": 1, "node": "n1", "at_s": 1700000000.0, "round": 1,
     "ranks": [{"rank": 0, "progress": {"step": 7, "phase": "train", "age_s": 3.2} | null,
                "processes": [{"pid": 1, "ppid": 0, "state": "S", "command": "python train.py", "cpu_s": 2.0,
                               "io_bytes": 10, "wchan": "", "error": "", "os_threads": 9, "net_bytes": 8,
                               "stack": "<hash>" | null}],
                "recorder": {"dump": …} | {"error": "why there is none"}, where the rank was asked for one}],
     "stacks": {"<hash>": [{"name": "MainThread", "main": true, "os_thread_id": 1, "active": false, "owns_gil": false,
                            "frames": [["function", "file", 12], …outermost first]}]}}

Archives are read as untrusted: sizes are capped and types checked.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Annotated

import msgspec

from slurm_robust.core.text import NODE_NAME
from slurm_robust.localize.evidence import Capture, CapturedProcess, CapturedThread, Progress, RankCapture, StackFrame
from slurm_robust.localize.recorder.dump import RankDump, RecorderDumpError, read_dump
from slurm_robust.localize.stacks import pyspy

VERSION = 1
MAX_FILE_BYTES = 64 * 2**20
MAX_UNPACKED_BYTES = 256 * 2**20


Word = Annotated[str, msgspec.Meta(max_length=512)]
_PROCESS_FIELDS = ("pid", "ppid", "state", "command", "cpu_s", "io_bytes", "wchan", "error", "os_threads", "net_bytes")
_Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""Python's own integers have no bound: a number of 400 digits is not a process id."""
RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=10_000_000)]


class ArchiveError(ValueError):
    """A file that cannot be used; the message says why."""


class _Thread(msgspec.Struct, frozen=True):
    frames: msgspec.Raw
    name: Word = ""
    main: bool = False
    os_thread_id: _Whole = 0
    active: bool = False
    owns_gil: bool = False


_FRAMES = msgspec.json.Decoder(Annotated[list[tuple[Word, Word, _Whole]], msgspec.Meta(max_length=pyspy.MAX_FRAMES)])


class _Process(msgspec.Struct, frozen=True):
    pid: _Whole
    ppid: _Whole = 0
    state: Annotated[str, msgspec.Meta(max_length=1)] = ""
    command: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    cpu_s: float = -1.0
    io_bytes: _Whole = -1
    wchan: Word = ""
    error: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    os_threads: _Whole = -1
    net_bytes: _Whole = -1
    stack: str | None = None


class _ProgressFields(msgspec.Struct, frozen=True):
    step: _Whole
    phase: Word = "train"
    age_s: float = 0.0


class _Recorder(msgspec.Struct, frozen=True):
    dump: msgspec.Raw = msgspec.Raw(b"null")
    error: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class _Rank(msgspec.Struct, frozen=True):
    rank: RankNumber
    processes: Annotated[list[_Process], msgspec.Meta(max_length=4096)] = []
    progress: _ProgressFields | None = None
    recorder: _Recorder | None = None


class _Archive(msgspec.Struct, frozen=True):
    v: int
    node: str
    at_s: float
    ranks: Annotated[list[_Rank], msgspec.Meta(max_length=4096)]
    stacks: dict[str, Annotated[list[_Thread], msgspec.Meta(max_length=pyspy.MAX_THREADS)]] = {}
    round: Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)] = 1


@dataclass(frozen=True)
class NodeArchive:
    """The stacks that one node's agent saw in one round.

    Attributes:
        recorder: Flight-recorder dumps of its ranks, without the operations that are complete.
        problems: A sentence for each dump that could not be used.
    """

    node: str
    at_s: float
    round: int
    ranks: tuple[RankCapture, ...]
    recorder: Mapping[int, RankDump] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def decode(data: bytes) -> NodeArchive:
    """Read one node's archive, gzipped or plain JSON.

    Raises:
        ArchiveError: the archive is cut off, too large, of another version, or not of this shape.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ArchiveError(f"{len(data)} bytes are refused (at most {MAX_FILE_BYTES})")
    try:
        raw = msgspec.json.decode(_unpack(data), type=_Archive)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ArchiveError(f"not an archive of stacks: {str(error)[:200]}") from None
    if raw.v != VERSION:
        raise ArchiveError(f"version {raw.v} is not read here (this side reads {VERSION}); update the older one")
    if not NODE_NAME.match(raw.node):
        raise ArchiveError(f"not a node name: {raw.node[:40]!r}")
    if not math.isfinite(raw.at_s):
        raise ArchiveError("at_s: not a finite number")
    try:
        stacks = {key: tuple(_thread(thread) for thread in threads) for key, threads in raw.stacks.items()}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ArchiveError(f"not an archive of stacks: frames: {str(error)[:200]}") from None
    ranks = tuple(_rank(rank, raw.node, stacks) for rank in raw.ranks)
    recorder, problems = _recorder(raw.ranks)
    return NodeArchive(raw.node, raw.at_s, raw.round, ranks, recorder, problems)


def _recorder(ranks: Iterable[_Rank]) -> tuple[dict[int, RankDump], tuple[str, ...]]:
    found: dict[int, RankDump] = {}
    problems = []
    for rank in ranks:
        if rank.recorder is None:
            continue
        why = rank.recorder.error
        if bytes(rank.recorder.dump) != b"null" and not why:
            try:
                found[rank.rank] = read_dump(bytes(rank.recorder.dump), rank.rank)
            except RecorderDumpError as error:
                why = str(error)
        if why:
            problems.append(f"the flight recorder of rank {rank.rank}: {why}")
    return found, tuple(problems)


def _unpack(data: bytes) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            unpacked = stream.read(MAX_UNPACKED_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ArchiveError(f"not whole gzip (half written?): {error}") from None
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise ArchiveError(f"unpacks to more than {MAX_UNPACKED_BYTES} bytes")
    return unpacked


def _thread(raw: _Thread) -> CapturedThread:
    return CapturedThread(_frames(bytes(raw.frames)), raw.name, raw.os_thread_id, raw.main, raw.active, raw.owns_gil)


@lru_cache(maxsize=16384)
def _frames(text: bytes) -> tuple[StackFrame, ...]:
    """Return the frames of a stack; equal frames are one object, since 100,000 ranks have few different stacks."""
    return tuple(StackFrame(function, file, max(line, 0)) for function, file, line in _FRAMES.decode(text))


def _rank(raw: _Rank, node: str, stacks: dict[str, tuple[CapturedThread, ...]]) -> RankCapture:
    processes = []
    for p in raw.processes:
        threads: tuple[CapturedThread, ...] = ()
        error = p.error
        if p.stack is not None:
            threads = stacks.get(p.stack, ())
            error = error if threads else error or "its stack is missing from the archive"
        cpu_s = p.cpu_s if math.isfinite(p.cpu_s) else -1.0
        read = (p.pid, p.ppid, p.state, p.command, cpu_s, p.io_bytes, p.wchan, threads, error, p.os_threads)
        processes.append(CapturedProcess(*read, net_bytes=p.net_bytes))
    progress = None
    if raw.progress is not None and math.isfinite(raw.progress.age_s):
        progress = Progress(raw.progress.step, raw.progress.phase, raw.progress.age_s)
    return RankCapture(raw.rank, node, tuple(processes), progress)


def encode(archive: NodeArchive) -> bytes:
    """Write one node's archive as the node agent writes it, for tools and tests that run elsewhere."""
    keys: dict[tuple[CapturedThread, ...], str] = {}
    ranks = []
    for rank in archive.ranks:
        processes = []
        for process in rank.processes:
            key = keys.setdefault(process.threads, f"s{len(keys)}") if process.threads else None
            entry = {name: getattr(process, name) for name in _PROCESS_FIELDS}
            processes.append({**entry, "stack": key})
        progress = None if rank.progress is None else asdict(rank.progress)
        ranks.append({"rank": rank.rank, "progress": progress, "processes": processes})
    stacks = {key: list(map(_as_json, threads)) for threads, key in keys.items()}
    body = {"v": VERSION, "node": archive.node, "at_s": archive.at_s, "round": archive.round}
    # Write no time stamp into the header, so that equal evidence gives equal bytes.
    return gzip.compress(json.dumps({**body, "ranks": ranks, "stacks": stacks}).encode(), mtime=0)


def _as_json(thread: CapturedThread) -> dict[str, object]:
    return vars(thread) | {"frames": [[frame.function, frame.file, frame.line] for frame in thread.frames]}


def captures(archives: Iterable[NodeArchive]) -> tuple[tuple[Capture, ...], tuple[str, ...]]:
    """Combine the archives of each round, oldest round first; a node without an archive of a round is missing in it.

    Returns the captures and a sentence for each rank that two archives of one round claim (the later one counts).
    """
    found, problems = rounds(archives)
    return tuple(found.values()), problems


def rounds(archives: Iterable[NodeArchive]) -> tuple[dict[int, Capture], tuple[str, ...]]:
    """Return the captures by the number of their round, and the sentences of `captures`."""
    archives = list(archives)
    problems: list[str] = []
    nodes = {archive.node for archive in archives}
    ranks_of: dict[int, dict[int, RankCapture]] = {}
    for archive in sorted(archives, key=lambda a: (a.round, a.at_s)):
        ranks = ranks_of.setdefault(archive.round, {})
        for rank in archive.ranks:
            if rank.rank in ranks:
                other = ranks[rank.rank].node
                problems.append(f"rank {rank.rank} is twice in round {archive.round}: on {other} and on {archive.node}")
            ranks[rank.rank] = rank
    result = {}
    for number, ranks in sorted(ranks_of.items()):
        members = [archive for archive in archives if archive.round == number]
        at_s = max(archive.at_s for archive in members)
        missing = tuple(sorted(nodes - {archive.node for archive in members}))
        result[number] = Capture(at_s, tuple(ranks[rank] for rank in sorted(ranks)), missing)
    return result, tuple(problems)
