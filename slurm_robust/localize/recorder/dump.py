"""Reads one rank's flight-recorder dump into frozen values.

PyTorch writes a pickle of plain containers (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE` + rank) or, on request, JSON with the
same keys. Nothing is executed from a pickle: a file that names any class or function is refused.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from slurm_robust.localize.ranks import strays
from slurm_robust.wire.plain_pickle import BoundedUnpickler, written_size

MAX_DUMP_BYTES = 256 << 20
"""The most bytes of a dump: a recorder with 20,000 entries and their stacks takes some 40 MB."""
MAX_RANKS = 1 << 20
MAX_MEMBERS = 2 * MAX_RANKS
"""Of all groups of a dump together."""
MAX_WRITTEN = 1 << 27
"""The most characters of a dump written without its stacks: 100,000 entries have some 500 each. A large file, in which
names of types are written only once, may have more."""
MAX_FILES = 131072
_MAX_WHOLE = 1 << 62
_RANK = re.compile(r"(?:^|[^0-9])(\d{1,7})(?:\.(?:json|pkl|pickle|pt))?$")
_SENDS = ("send", "isend")
_PEER = re.compile(r"(?:send|recv|isend|irecv) ?(\d+)(?:->|<-)(\d+)")


class RecorderDumpError(Exception):
    """A dump cannot be used; the message says why, without the file's name."""


HOST_BACKENDS = frozenset({"gloo", "mpi"})
"""No device takes part in their operations."""


@dataclass(frozen=True)
class Operation:
    """One operation that a rank enqueued and that is not known to be complete.

    Attributes:
        group: The process group's name, equal on all its members.
        seq: Its number among the group's collectives, or among the group's point-to-point operations.
        order: Place in the order in which this rank enqueued its operations, over all groups.
        name: The name without the back end's prefix: `all_reduce`, `send 0->3`.
        peer: The other rank of a point-to-point operation (world rank), -1 for collectives or if unknown.
        state: `scheduled` or `started`.
        shape: Sizes and types of input and output as one text, to be compared.
        created_at_s: When it was enqueued, seconds since the epoch, 0 if unknown.
        backend: The back end that carries it out: `nccl`, `gloo`, …; empty if unknown.
    """

    group: str
    seq: int
    order: int
    name: str
    peer: int = -1
    state: str = "scheduled"
    shape: str = ""
    created_at_s: float = 0.0
    backend: str = ""

    @property
    def p2p(self) -> bool:
        """Point-to-point: only two ranks take part."""
        return self.name.startswith(("send", "recv", "isend", "irecv"))

    @property
    def sends(self) -> bool:
        """Whether it sends to one peer: it may wait although no rank is late yet."""
        return self.name.startswith(_SENDS)


@dataclass(frozen=True)
class ProcessGroup:
    """A process group: the program's name for it, and its members (world ranks)."""

    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Exchange:
    """The completed operations that one end recorded of one direction between two ranks.

    Attributes:
        completed: How many operations were completed, as far back as the recorder reaches.
        last_seq: Number of the newest of them among the group's point-to-point operations.
    """

    completed: int
    last_seq: int


Channel = tuple[str, int, bool]
"""A group, the other rank (world rank), and whether this end sends."""


@dataclass(frozen=True)
class RankDump:
    """The content of one rank's recorder.

    Attributes:
        groups: The groups to which the rank belongs, by name.
        counters: Group's number in this process → (last enqueued, last completed), -1 for none yet.
        numbers: Group's number in this process → the group's name, as far as the entries show it.
        pending: Operations that are not complete, in the order in which they were enqueued.
        last_at_s: When the rank enqueued its newest recorded operation, 0 if none is recorded.
        exchanges: Completed point-to-point operations.
        whole: The recorder reaches back to the rank's first operation, so that its operations can be counted.
        written_at_s: When the dump was written, seconds since the epoch; 0 if that is not known.
    """

    rank: int
    groups: Mapping[str, ProcessGroup]
    counters: Mapping[int, tuple[int, int]]
    numbers: Mapping[int, str]
    pending: tuple[Operation, ...] = ()
    last_at_s: float = 0.0
    exchanges: Mapping[Channel, Exchange] = field(default_factory=dict)
    whole: bool = False
    written_at_s: float = 0.0

    @property
    def device_waits(self) -> bool:
        """Whether an operation that uses a device is open: the host waits for it at its next use of the device."""
        return any(op.backend not in HOST_BACKENDS for op in self.pending)


@dataclass
class DumpPairs:
    """The last two dumps of each rank, which show whether anything moved between them.

    Attributes:
        latest: Rank → its latest dump.
        before: Rank → its dump before the latest, of ranks that have written two dumps.
    """

    latest: dict[int, RankDump] = field(default_factory=dict)
    before: dict[int, RankDump] = field(default_factory=dict)

    def add(self, dumps: Mapping[int, RankDump]) -> None:
        """Take the dumps of one more capture; a file that was read before does not count as a new dump."""
        for rank, dump in dumps.items():
            known = self.latest.get(rank)
            if known is not None and not dump.written_at_s == known.written_at_s > 0:
                self.before[rank] = known
            self.latest[rank] = dump

    def copy(self) -> DumpPairs:
        """Return a copy that can be changed by itself."""
        return DumpPairs(dict(self.latest), dict(self.before))


class _PlainUnpickler(BoundedUnpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise RecorderDumpError(
            f"it names {module}.{name}"[:120] + ": a dump holds plain containers only, nothing was run"
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise RecorderDumpError("it refers to objects outside the file")


def read_dump(body: bytes, rank: int) -> RankDump:
    """Read a dump, a pickle or JSON. `rank` is the rank that wrote it, by its file name: the dump does not tell.

    Raises:
        RecorderDumpError: not a dump, or a pickle that would run code.
    """
    if len(body) > MAX_DUMP_BYTES:
        raise RecorderDumpError(f"more bytes than a dump can have ({MAX_DUMP_BYTES})")
    return _decode(_plain(body), rank, max(MAX_WRITTEN, 4 * len(body)))


def _plain(body: bytes) -> Any:
    if not body:
        raise RecorderDumpError("it is empty")
    if body.lstrip()[:1] == b"{":
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RecorderDumpError(f"not complete JSON ({error})") from None
    try:
        return _PlainUnpickler(io.BytesIO(body)).load()
    except RecorderDumpError:
        raise
    except Exception as error:  # noqa: BLE001 (whatever a garbled pickle makes of itself)
        raise RecorderDumpError(f"not a pickle that can be read ({type(error).__name__}: {error})"[:160]) from None


def _decode(plain: Any, rank: int, most_written: int) -> RankDump:
    if not isinstance(plain, dict) or not isinstance(plain.get("entries"), list):
        raise RecorderDumpError("not a flight-recorder dump: no list of entries in it")
    try:
        written_size(plain, most_written, skip="frames")
        _bound_members(plain.get("pg_config") or {})
        groups = {str(name): _group(str(name), fields) for name, fields in (plain.get("pg_config") or {}).items()}
        if "" in groups and "0" not in groups:
            # Gloo's default group has no name in the table of groups, and this one in its entries.
            groups["0"] = replace(groups.pop(""), name="0")
        counters = {
            _whole(number): (_whole(fields["last_enqueued_collective"]), _whole(fields["last_completed_collective"]))
            for number, fields in (plain.get("pg_status") or {}).items()
        }
        numbers: dict[int, str] = {}
        pending: list[Operation] = []
        last_at_s = 0.0
        for entry in plain["entries"]:
            name = str(entry["process_group"][0])
            numbers[_whole(entry["pg_id"])] = name
            last_at_s = max(last_at_s, _created_at_s(entry))
            if entry.get("state") != "completed" and not entry.get("retired"):
                pending.append(_op(entry, groups.get(name)))
        exchanges = _exchanges(plain, groups)
        first = plain.get("first_record_id", min((_whole(e["record_id"]) for e in plain["entries"]), default=-1))
        whole = _whole(first) == 0
        written_at_s = float(plain.get("written_at_s", 0.0))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        version = plain.get("version", "none")
        version = version[:20] if isinstance(version, str) else type(version).__name__
        raise RecorderDumpError(f"version {version}: {type(error).__name__} {error}"[:160]) from None
    pending.sort(key=lambda op: op.order)
    return RankDump(rank, groups, counters, numbers, tuple(pending), last_at_s, exchanges, whole, written_at_s)


def _exchanges(plain: Mapping[str, Any], groups: Mapping[str, ProcessGroup]) -> dict[Channel, Exchange]:
    """Return the completed point-to-point operations, as the node's agent counted them, or counted here."""
    told: list[tuple[str, str, int, int]] = []
    if "exchanges" in plain:
        told = [(str(group), str(name), _whole(n), _whole(seq)) for group, name, n, seq in plain["exchanges"]]
    else:
        for entry in plain["entries"]:
            name = str(entry["profiling_name"])[:80].rpartition(":")[2]
            if _PEER.match(name) and (entry.get("state") == "completed" or entry.get("retired")):
                told.append((str(entry["process_group"][0]), name, 1, _whole(entry["p2p_seq_id"])))
    found: dict[Channel, Exchange] = {}
    for group, name, count, seq in told:
        match = _PEER.match(name)
        if match is not None and (peer := _peer(match, groups.get(group))) >= 0:
            key = (group, peer, name.startswith(_SENDS))
            known = found.get(key, Exchange(0, -1))
            found[key] = Exchange(known.completed + count, max(known.last_seq, seq))
    return found


def _peer(match: re.Match[str], group: ProcessGroup | None) -> int:
    """Return the world rank of the other end, -1 if unknown; the name has places in the group, the own place first."""
    place = int(match[2])
    return group.ranks[place] if group is not None and place < len(group.ranks) else -1


def _whole(value: Any) -> int:
    """Return a whole number of a usual size.

    Raises:
        ValueError, OverflowError: infinite, or of hundreds of digits, which pickles and JSON may hold.
    """
    number = int(value)
    if abs(number) > _MAX_WHOLE:
        raise ValueError("a number of more than 62 bits")
    return number


def _created_at_s(entry: Mapping[str, Any]) -> float:
    return _whole(entry.get("time_created_ns") or 0) / 1e9


def _group(name: str, fields: Mapping[str, Any]) -> ProcessGroup:
    desc = str(fields.get("desc", ""))
    if "ranges" in fields:
        # As the node's agent writes it; all ranks of a large job list the same group.
        return ProcessGroup(
            name, desc, _spread(tuple((_whole(a), _whole(b), _whole(c)) for a, b, c in fields["ranges"]))
        )
    ranks = fields["ranks"]
    if isinstance(ranks, str):
        ranks = json.loads(ranks or "[]")
    return ProcessGroup(name, desc, tuple(_whole(r) for r in ranks))


def _bound_members(groups: Mapping[str, Any]) -> None:
    """Raise ValueError if the ranges of all groups have too many ranks together."""
    ranges = [r for fields in groups.values() for r in fields.get("ranges") or ()]
    if sum(abs(_whole(last) - _whole(first)) // max(_whole(step), 1) + 1 for first, last, step in ranges) > MAX_MEMBERS:
        raise ValueError(f"groups of more than {MAX_MEMBERS} ranks together")


@lru_cache(maxsize=4096)
def _spread(ranges: tuple[tuple[int, int, int], ...]) -> tuple[int, ...]:
    """Return the ranks of ranges (first, last, step)."""
    if sum(abs(last - first) // max(step, 1) + 1 for first, last, step in ranges) > MAX_RANKS:
        raise ValueError(f"a group of more than {MAX_RANKS} ranks")
    return tuple(rank for first, last, step in ranges for rank in range(first, last + 1, max(step, 1)))


def _op(entry: Mapping[str, Any], group: ProcessGroup | None) -> Operation:
    backend, _, name = str(entry["profiling_name"])[:80].partition(":")
    name = name or backend
    match = _PEER.match(name)
    peer = -1 if match is None else _peer(match, group)
    sizes = [entry.get(key) for key in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")]
    return Operation(
        group=str(entry["process_group"][0]),
        seq=_whole(entry["p2p_seq_id"] if match is not None else entry["collective_seq_id"]),
        order=_whole(entry["record_id"]),
        name=name,
        peer=peer,
        state=str(entry.get("state") or "scheduled"),
        shape=json.dumps(sizes, default=str),
        created_at_s=_created_at_s(entry),
        backend=backend if name != backend else "",
    )


@dataclass(frozen=True)
class SavedDumps:
    """A folder's dumps by rank, and a sentence for each file that could not be used."""

    dumps: Mapping[int, RankDump]
    problems: tuple[str, ...] = ()


def read_dumps(folder: Path, world_size: int = 0) -> SavedDumps:
    """Read all dumps of one incident.

    The rank is the number that a file's name ends with (`nccl_trace_rank_12`, `_dump_12`, `12.json`). A number far
    above all other numbers is left out, unless the job is known to have so many ranks.

    Raises:
        RecorderDumpError: no such folder, or nothing usable in it.
    """
    if not folder.is_dir():
        raise RecorderDumpError(f"{folder}: no such folder")
    dumps: dict[int, RankDump] = {}
    problems: list[str] = []
    for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))[:MAX_FILES]:
        if (match := _RANK.search(path.name)) is None:
            continue
        rank = int(match[1])
        try:
            with path.open("rb") as stream:
                found = read_dump(stream.read(MAX_DUMP_BYTES + 1), rank)
        except (RecorderDumpError, OSError) as error:
            problems.append(f"{path}: {error}")
            continue
        if rank in dumps:
            problems.append(f"{path}: another dump of rank {rank}; the one that goes on longer is used")
            found = max(found, dumps[rank], key=lambda d: d.last_at_s)
        dumps[rank] = found
    for rank in strays(dumps, world_size):
        del dumps[rank]
        problems.append(f"{folder}: dump of rank {rank}: left out: too high a number beside {len(dumps)} others")
    if not dumps:
        why = problems[0] if problems else "no file whose name ends with a rank"
        raise RecorderDumpError(f"{folder}: no flight-recorder dump: {why}")
    return SavedDumps(dumps, tuple(problems))
