"""Reads NCCL's own view of a job (RAS, NCCL 2.24 and later) into frozen values.

RAS shows which processes do not answer, and which ranks launched an operation less often than their peers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

_Shape = TypeVar("_Shape", bound=msgspec.Struct)


class RasError(ValueError):
    """An answer that cannot be used; the message says why."""


def read(body: bytes) -> RasView:
    """Read an answer as it is kept in an incident's folder: `{"at_s": …, "json": {…}}` or `{"at_s": …, "text": "…"}`.

    Raises:
        RasError: not of that shape.
    """
    answer = _decoded(body, _Kept)
    return read_text(answer.text, answer.at_s) if answer.text else read_json(bytes(answer.json), answer.at_s)


@dataclass(frozen=True)
class CommunicatorMember:
    """A rank of a communicator, by NCCL's own number in it, the process's host (an address) and process id."""

    rank: int
    host: str
    pid: int


@dataclass(frozen=True)
class Lag:
    """One operation that some ranks of a communicator launched less often than others.

    Attributes:
        communicator: NCCL's hash of the communicator.
        size: Number of ranks of the communicator.
        operation: AllReduce, …; empty if NCCL (2.24, 2.25) does not name it.
        most: How often the ranks that are ahead launched the operation.
        behind: Ranks that launched it less often, and how often; only ranks that NCCL names.
        whole: Whether all ranks that are behind are named.
        ahead: Ranks that launched it most often; empty if NCCL does not name them.
    """

    communicator: str
    size: int
    operation: str
    most: int
    behind: tuple[tuple[CommunicatorMember, int], ...]
    whole: bool = True
    ahead: tuple[CommunicatorMember, ...] = ()


@dataclass(frozen=True)
class RasView:
    """One answer of the RAS service.

    Attributes:
        at_s: When it was received, seconds since the epoch.
        silent: Processes that do not answer, the size of their communicator, and whether NCCL has given them up.
    """

    at_s: float
    silent: tuple[tuple[CommunicatorMember, int, bool], ...] = ()
    lags: tuple[Lag, ...] = ()


_Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class _Kept(msgspec.Struct, frozen=True):
    at_s: float
    json: msgspec.Raw = msgspec.Raw(b"null")
    text: str = ""


class _Operation(msgspec.Struct, frozen=True):
    name: str
    most: _Whole
    behind: list[tuple[_Whole, str, _Whole, _Whole]]
    behind_count: _Whole
    ahead: list[tuple[_Whole, str, _Whole]] = []


class _Communicator(msgspec.Struct, frozen=True):
    hash: str
    size: _Whole
    missing: list[tuple[_Whole, str, _Whole, bool]] = []
    operations: list[_Operation] = []


class _Answer(msgspec.Struct, frozen=True):
    communicators: list[_Communicator]


def read_json(body: bytes, at_s: float) -> RasView:
    """Read an answer as the node's agent sends it.

    Raises:
        RasError: not of that shape.
    """
    known = _decoded(body, _Answer).communicators
    silent = tuple((CommunicatorMember(*who[:3]), c.size, who[3]) for c in known for who in c.missing)
    return RasView(at_s, silent, tuple(_lag(c, o) for c in known for o in c.operations))


def _decoded(body: bytes, kind: type[_Shape]) -> _Shape:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RasError(f"not an answer of NCCL RAS: {str(error)[:160]}") from None


def _lag(c: _Communicator, o: _Operation) -> Lag:
    behind = tuple((CommunicatorMember(rank, host, pid), count) for rank, host, pid, count in o.behind)
    ahead = tuple(CommunicatorMember(*who) for who in o.ahead)
    return Lag(c.hash, c.size, o.name, o.most, behind, len(behind) == o.behind_count, ahead)


_PROCESS = re.compile(r"\s*Process (\d+) on node (\S+) managing GPUs? ")
_RANK = re.compile(r"\s*Rank (\d+)(?: has (?:launched up to operation (\d+)|not launched any operations))? -- "
                   r"GPU .{1,80} managed by process (\d+) on node (\S+)")  # fmt: skip
_COMMUNICATOR = re.compile(r"#\d+-\d+ \(([0-9a-fA-F]+)\) (\w+)")
_OPERATIONS = re.compile(r"\s*Communicator ranks have different (\w+) operation counts")
_COUNT = re.compile(r"\s*(\d+) ranks? ha(?:ve|s) (?:launched up to operation (\d+)|(not) launched any operations)")


def read_text(text: str, at_s: float) -> RasView:
    """Read the text with which older versions of NCCL answer; lines that are not understood are skipped."""
    silent: dict[CommunicatorMember, bool] = {}
    lags: list[Lag] = []
    section, communicator = "", ""
    heading: _Heading | None = None
    for line in text.splitlines():
        if line.strip() in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            section, heading = line.strip(), None
        elif found := _COMMUNICATOR.match(line):
            communicator, section, heading = found[1], found[2], None
        elif (found := _PROCESS.match(line)) and section in ("INCOMPLETE", "DEAD"):
            who = CommunicatorMember(-1, found[2], int(found[1]))
            silent[who] = silent.get(who, False) or section == "DEAD"
        elif found := _OPERATIONS.match(line):
            heading = _Heading(communicator, "" if found[1] == "collective" else found[1])
            lags.append(heading.lag())
        elif heading is not None and (found := _COUNT.match(line)):
            heading.begin(0 if found[3] else int(found[2]), int(found[1]))
            lags[-1] = heading.lag()
        elif heading is not None and (found := _RANK.match(line)):
            heading.add(CommunicatorMember(int(found[1]), found[4], int(found[3])), line, found[2])
            lags[-1] = heading.lag()
    known = tuple((who, 0, dead) for who, dead in silent.items())
    return RasView(at_s, known, tuple(lag for lag in lags if lag.behind or not lag.whole))


class _Heading:
    """The counts of one communicator and operation, filled line by line."""

    def __init__(self, communicator: str, operation: str) -> None:
        self.communicator, self.operation = communicator, operation
        self.counts: dict[int, int] = {}
        self.named: dict[int, list[CommunicatorMember]] = defaultdict(list)
        self.now = 0

    def begin(self, count: int, ranks: int) -> None:
        self.now = count
        self.counts[count] = ranks

    def add(self, who: CommunicatorMember, line: str, own: str | None) -> None:
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
