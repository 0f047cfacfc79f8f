"""NCCL's own view of a job (RAS, NCCL 2.24 and later): who does not answer, and who launched less than its peers.

Its service thread needs neither Python nor the GPU: a process that does not answer it is stopped, dead or cut off. The
counts of operations tell who was not there when its peers went ahead, as the flight recorder does, with less detail:
they are followed only where two answers, some seconds apart, show the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from slurm_robust.localize.ranks import name
from slurm_robust.model import Conclusion, Suspect, Verdict
from slurm_robust.text import joined

CONFIDENCE_DEAD = 0.9
CONFIDENCE_SILENT = 0.8
CONFIDENCE_BEHIND = 0.75
"""Hand-set: below the flight recorder's, which knows the operation."""
APART_S = 2.0
"""Two answers closer than this say nothing of motion."""
MAX_SUSPECT_SHARE = 0.5


class RasError(ValueError):
    """An answer that cannot be used; the message says why."""


def read(body: bytes) -> RasView:
    """Read an answer as it is kept in an incident's folder: `{"at_s": …, "json": {…}}` or `{"at_s": …, "text": "…"}`.

    Raises:
        RasError: not of that shape.
    """
    try:
        told = msgspec.json.decode(body, type=_Kept)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RasError(f"not an answer of NCCL RAS: {str(error)[:160]}") from None
    return read_text(told.text, told.at_s) if told.text else read_json(bytes(told.json), told.at_s)


@dataclass(frozen=True)
class Member:
    """A rank of a communicator, by NCCL's own number in it, the process's host (an address) and process id."""

    rank: int
    host: str
    pid: int


@dataclass(frozen=True)
class Lag:
    """One operation that some ranks of a communicator launched less often than others.

    Attributes:
        communicator: NCCL's hash of it.
        size: Its ranks.
        operation: AllReduce, …; empty where NCCL (2.24, 2.25) does not tell.
        most: How often those ahead launched it.
        behind: Who launched it less often, and how often; only those that NCCL names.
        whole: All that are behind are named.
        ahead: Who launched it most often; empty where they are not told.
    """

    communicator: str
    size: int
    operation: str
    most: int
    behind: tuple[tuple[Member, int], ...]
    whole: bool = True
    ahead: tuple[Member, ...] = ()


@dataclass(frozen=True)
class RasView:
    """One answer.

    Attributes:
        at_s: Seconds since the epoch.
        silent: Processes that do not answer, and whether NCCL has given them up; `size` of their communicator.
    """

    at_s: float
    silent: tuple[tuple[Member, int, bool], ...] = ()
    lags: tuple[Lag, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    at_s: float
    json: msgspec.Raw = msgspec.Raw(b"null")
    text: str = ""


class _Operation(msgspec.Struct, frozen=True):
    name: str
    most: int
    behind: list[tuple[int, str, int, int]]
    behind_count: int
    ahead: list[tuple[int, str, int]] = []


class _Communicator(msgspec.Struct, frozen=True):
    hash: str
    size: int
    missing: list[tuple[int, str, int, bool]] = []
    operations: list[_Operation] = []


class _Answer(msgspec.Struct, frozen=True):
    communicators: list[_Communicator]


def read_json(body: bytes, at_s: float) -> RasView:
    """Read an answer as the node's agent sends it.

    Raises:
        RasError: not of that shape.
    """
    try:
        told = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RasError(f"not an answer of NCCL RAS: {str(error)[:160]}") from None
    silent = tuple(
        (Member(rank, host, pid), c.size, dead) for c in told.communicators for rank, host, pid, dead in c.missing
    )
    lags = tuple(_lag(c, o) for c in told.communicators for o in c.operations)
    return RasView(at_s, silent, lags)


def _lag(c: _Communicator, o: _Operation) -> Lag:
    behind = tuple((Member(rank, host, pid), count) for rank, host, pid, count in o.behind)
    ahead = tuple(Member(rank, host, pid) for rank, host, pid in o.ahead)
    return Lag(c.hash, c.size, o.name, o.most, behind, len(behind) == o.behind_count, ahead)


_PROCESS = re.compile(r"\s*Process (\d+) on node (\S+) managing GPUs? ")
_RANK = re.compile(r"\s*Rank (\d+)(?: has (?:launched up to operation (\d+)|not launched any operations))? -- "
                   r"GPU .{1,80} managed by process (\d+) on node (\S+)")  # fmt: skip
_COMMUNICATOR = re.compile(r"#\d+-\d+ \(([0-9a-fA-F]+)\) (\w+)")
_OPERATIONS = re.compile(r"\s*Communicator ranks have different (\w+) operation counts")
_COUNT = re.compile(r"\s*(\d+) ranks? ha(?:ve|s) (?:launched up to operation (\d+)|(not) launched any operations)")


def read_text(text: str, at_s: float) -> RasView:
    """Read the text that older NCCLs answer with; what is not understood is passed over."""
    silent: dict[Member, bool] = {}
    lags: list[Lag] = []
    section, communicator = "", ""
    heading: _Heading | None = None
    for line in text.splitlines():
        if line.strip() in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            section, heading = line.strip(), None
        elif found := _COMMUNICATOR.match(line):
            communicator, section = found[1], found[2]
            heading = None
        elif (found := _PROCESS.match(line)) and section in ("INCOMPLETE", "DEAD"):
            who = Member(-1, found[2], int(found[1]))
            silent[who] = silent.get(who, False) or section == "DEAD"
        elif found := _OPERATIONS.match(line):
            heading = _Heading(communicator, "" if found[1] == "collective" else found[1])
            lags.append(heading.lag())
        elif heading is not None and (found := _COUNT.match(line)):
            heading.begin(0 if found[3] else int(found[2]), int(found[1]))
            lags[-1] = heading.lag()
        elif heading is not None and (found := _RANK.match(line)):
            heading.add(Member(int(found[1]), found[4], int(found[3])), line, found[2])
            lags[-1] = heading.lag()
    known = tuple((who, 0, dead) for who, dead in silent.items())
    return RasView(at_s, known, tuple(lag for lag in lags if lag.behind))


class _Heading:
    """One communicator's and operation's counts, as its lines come."""

    def __init__(self, communicator: str, operation: str) -> None:
        self.communicator, self.operation = communicator, operation
        self.counts: dict[int, int] = {}
        self.named: dict[int, list[Member]] = defaultdict(list)
        self.now = 0

    def begin(self, count: int, ranks: int) -> None:
        self.now = count
        self.counts[count] = ranks

    def add(self, who: Member, line: str, own: str | None) -> None:
        # A rank that stands alone has its count in its own line.
        count = int(own) if own else 0 if "not launched" in line else self.now
        if own or "not launched" in line:
            self.counts[count] = 1
        self.named[count].append(who)

    def lag(self) -> Lag:
        most = max(self.counts, default=0)
        behind = tuple((who, count) for count, members in self.named.items() if count < most for who in members)
        whole = len(behind) == sum(ranks for count, ranks in self.counts.items() if count < most)
        return Lag(self.communicator, sum(self.counts.values()), self.operation, most, behind, whole)


def judge_ras(
    views: Sequence[RasView], pids: Mapping[int, tuple[int, ...]], rank_nodes: Mapping[int, str]
) -> Verdict | None:
    """The verdict that NCCL's own view carries; None where it shows nothing wrong, or nothing that lasts.

    Args:
        views: Oldest first.
        pids: Process id → the ranks that have it (several on several nodes).
        rank_nodes: Where each rank runs.
    """
    if not views:
        return None
    find = _Finder(pids, len(rank_nodes))
    last = views[-1]
    before = next((v for v in reversed(views) if last.at_s - v.at_s >= APART_S), None)
    silent = _silent(last, before, find)
    if silent:
        return _named(silent, rank_nodes)
    behind = _behind(last, before, find)
    return _named(behind, rank_nodes) if behind else None


class _Finder:
    """Our ranks for NCCL's members."""

    def __init__(self, pids: Mapping[int, tuple[int, ...]], world: int) -> None:
        self._pids, self.world = pids, world

    def ahead(self, lag: Lag) -> set[int | None]:
        """Who launched the operation as often as any: they wait for those that are behind."""
        if lag.size == self.world:
            return {*range(self.world)} - {who.rank for who, _ in lag.behind}
        return {self.rank(who, lag.size) for who in lag.ahead}

    def rank(self, who: Member, size: int) -> int | None:
        """In the communicator of all ranks its number is the rank; else its process id tells, where only one has it."""
        if size == self.world and who.rank >= 0:
            return who.rank
        ranks = self._pids.get(who.pid, ())
        return ranks[0] if len(ranks) == 1 else None


_Lead = tuple[float, str]


def _silent(last: RasView, before: RasView | None, find: _Finder) -> dict[int, _Lead]:
    """Processes that answered neither answer, or that NCCL has given up."""
    earlier = {(who.host, who.pid) for who, _, _ in before.silent} if before is not None else set()
    leads: dict[int, _Lead] = {}
    for who, size, dead in last.silent:
        rank = find.rank(who, size)
        if rank is None or not (dead or (who.host, who.pid) in earlier):
            continue
        confidence = CONFIDENCE_DEAD if dead else CONFIDENCE_SILENT
        what = "considered dead" if dead else "unreachable"
        leads[rank] = max(leads.get(rank, (0.0, "")), (confidence, f"NCCL calls its process {who.pid} {what}"))
    return leads


def _behind(last: RasView, before: RasView | None, find: _Finder) -> dict[int, _Lead]:
    """Ranks that are waited for, wait for nobody themselves, and did not move between the two answers."""
    if before is None or not last.lags or not _all_told(last.lags, find):
        return {}
    earlier = {(lag.communicator, lag.operation): lag for lag in before.lags}
    if any(earlier.get((lag.communicator, lag.operation)) != lag for lag in last.lags):
        return {}  # something moves
    late: dict[int, _Lead] = {}
    waiting: set[int | None] = set()
    for lag in last.lags:
        least = min(count for _, count in lag.behind)
        waiting |= find.ahead(lag)
        for who, count in lag.behind:
            rank = find.rank(who, lag.size)
            if rank is None:
                return {}
            if count > least:
                waiting.add(rank)
            else:
                late[rank] = (CONFIDENCE_BEHIND, _told(lag, count))
    return {rank: lead for rank, lead in late.items() if rank not in waiting}


def _all_told(lags: Sequence[Lag], find: _Finder) -> bool:
    """All that are behind are named and, where several operations lag, all that are ahead, too."""
    if not all(lag.whole for lag in lags):
        return False
    return len(lags) == 1 or all(lag.size == find.world or len(lag.ahead) + len(lag.behind) == lag.size for lag in lags)


def _told(lag: Lag, count: int) -> str:
    what = lag.operation or "operation"
    return f"it launched {what} {count} times, {lag.size - len(lag.behind)} peers {lag.most} times"


def _named(leads: Mapping[int, _Lead], rank_nodes: Mapping[int, str]) -> Verdict:
    by_node: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(leads):
        by_node[rank_nodes.get(rank, "")].append(rank)
    nodes = set(rank_nodes.values())
    if len(nodes) > 1 and len(by_node) > MAX_SUSPECT_SHARE * len(nodes):
        reason = f"NCCL shows {name(leads)} behind or silent, on {len(by_node)} of {len(nodes)} nodes"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("what those ranks share: network, storage, input",))
    suspects = []
    for node, ranks in by_node.items():
        confidence, what = max(leads[rank] for rank in ranks)
        where = f"{name(ranks)} on {node}" if node else name(ranks)
        suspects.append(Suspect(node, tuple(ranks), confidence, f"{where}: {what}"))
    suspects.sort(key=lambda s: -s.confidence)
    return Verdict(Conclusion.CULPRIT, joined(s.why for s in suspects), tuple(suspects))
