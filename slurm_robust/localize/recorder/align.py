"""Dumps of all ranks laid side by side: who waits for whom, and in which operation.

An operation that a rank has enqueued and that is not complete waits for one of three things: members that never
enqueued it (`absent`), its own device, where other members have completed it (`stuck`), or something that lies before
it on a member's device (`behind`). From these edges the sinks follow: who is waited for and waits for nobody.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_robust.localize.recorder.dump import Group, Op, RankDump

_ONE_SIDED = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "scatter", "gather"})
"""Some members complete these while others have not begun: that says nothing about anybody's device."""
_ANY_SHAPE = frozenset({"all_to_all", "alltoall_base", "alltoall", "gather", "scatter", "barrier"})
"""Sizes may differ between members."""


class Why(enum.Enum):
    """Why one rank waits for another."""

    ABSENT = "never joined"
    BEHIND = "joined, and is held before it"


@dataclass(frozen=True)
class Edge:
    """`waiter` waits for `rank`, in `op`."""

    waiter: int
    rank: int
    op: Op
    why: Why


@dataclass(frozen=True)
class Mismatch:
    """Members of one group entered different operations under one number."""

    group: Group
    seq: int
    entered: tuple[tuple[str, tuple[int, ...]], ...]
    """What was entered, and by whom; the most common first."""


@dataclass(frozen=True)
class Alignment:
    """What all dumps say together.

    Attributes:
        edges: Who waits for whom.
        stuck: Ranks whose own device holds an operation that others have completed, with the first such one.
        closed: Groups in which all members joined an operation as their first, and none has completed it.
        mismatches: Different operations under one number: a fault of the program.
        undumped: Members of the groups that left no dump.
    """

    edges: tuple[Edge, ...]
    stuck: Mapping[int, tuple[Op, tuple[int, ...]]]
    closed: tuple[tuple[Group, Op], ...]
    mismatches: tuple[Mismatch, ...]
    undumped: tuple[int, ...]


class _Board:
    """Which member of which group has enqueued and completed how much."""

    def __init__(self, dumps: Mapping[int, RankDump]) -> None:
        self.dumps = dumps
        self.groups: dict[str, Group] = {}
        self.entered: dict[tuple[str, int], dict[int, Op]] = defaultdict(dict)
        self._mixed = {op.group for d in dumps.values() for op in d.pending if op.p2p}
        for dump in dumps.values():
            self.groups.update(dump.groups)
            for op in dump.pending:
                if not op.p2p:
                    self.entered[op.group, op.seq][dump.rank] = op
        self._counters = self._count()

    def _count(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(group, rank) → (last enqueued, last completed). Numbers in a process are matched to groups by their use."""
        by_desc: dict[int, set[str]] = defaultdict(set)
        for dump in self.dumps.values():
            for number, used in dump.numbers.items():
                if used in dump.groups:
                    by_desc[number].add(dump.groups[used].desc)
        found = {}
        for dump in self.dumps.values():
            named: dict[str, list[str]] = defaultdict(list)
            for group in dump.groups.values():
                named[group.desc].append(group.name)
            for number, counters in dump.counters.items():
                name: str | None = dump.numbers.get(number)
                if name is None and len(by_desc[number]) == 1:
                    # This rank has no entry of it: the same number means the same kind of group on all that have.
                    candidates = named.get(next(iter(by_desc[number])), [])
                    name = candidates[0] if len(candidates) == 1 else None
                if name is not None and name not in self._mixed:
                    found[name, dump.rank] = counters
        return found

    def joined(self, rank: int, op: Op) -> bool | None:
        """Has this member enqueued the operation? None where its dump does not tell."""
        if rank in self.entered[op.group, op.seq]:
            return True
        counters = self._counters.get((op.group, rank))
        if counters is not None:
            return counters[0] >= op.seq
        return None

    def completed(self, rank: int, op: Op) -> bool:
        """Is the operation known to be complete on this member's device?"""
        counters = self._counters.get((op.group, rank))
        return counters is not None and counters[1] >= op.seq and rank not in self.entered[op.group, op.seq]


def align(dumps: Iterable[RankDump]) -> Alignment:
    """Lay the dumps side by side. Two of one rank: the later one counts."""
    board = _Board({d.rank: d for d in dumps})
    edges: list[Edge] = []
    stuck: dict[int, tuple[Op, tuple[int, ...]]] = {}
    closed: dict[str, tuple[Group, Op]] = {}
    for dump in board.dumps.values():
        first = dump.pending[0] if dump.pending else None
        for op in _heads(dump.pending):
            group = board.groups.get(op.group)
            if group is None:
                continue
            if op.p2p:
                edges.extend(_pair(board, dump.rank, op))
                continue
            absent, done, unknown = _members(board, dump.rank, group, op)
            edges.extend(Edge(dump.rank, rank, op, Why.ABSENT) for rank in absent)
            if done and not absent and op.name.lower() not in _ONE_SIDED:
                stuck.setdefault(dump.rank, (op, done))
            elif not absent and not unknown:
                held = tuple(r for r in group.ranks if r != dump.rank and not _is_first(board, r, op))
                edges.extend(Edge(dump.rank, rank, op, Why.BEHIND) for rank in held)
                if not held and op is first:
                    closed[op.group] = (group, op)
    members = {rank for group in board.groups.values() for rank in group.ranks}
    undumped = tuple(sorted(members - set(board.dumps)))
    return Alignment(tuple(edges), stuck, tuple(closed.values()), _mismatches(board), undumped)


def _heads(pending: Iterable[Op]) -> list[Op]:
    """The first pending operation of each group, and of each peer in point-to-point: the others wait behind it."""
    heads: dict[tuple[str, int], Op] = {}
    for op in pending:
        heads.setdefault((op.group, op.peer), op)
    return list(heads.values())


def _members(board: _Board, me: int, group: Group, op: Op) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Members that never joined, that have completed, and that nothing is known of."""
    absent, done, unknown = [], [], []
    for rank in group.ranks:
        if rank == me:
            continue
        joined = board.joined(rank, op)
        if rank not in board.dumps or joined is False:
            absent.append(rank)
        elif joined is None:
            unknown.append(rank)
        elif board.completed(rank, op):
            done.append(rank)
    return tuple(absent), tuple(done), tuple(unknown)


def _is_first(board: _Board, rank: int, op: Op) -> bool:
    """Nothing lies before this operation on the member's device, as far as its recorder knows."""
    mine = board.entered[op.group, op.seq].get(rank)
    pending = board.dumps[rank].pending
    return mine is not None and bool(pending) and pending[0].order == mine.order


def _pair(board: _Board, me: int, op: Op) -> list[Edge]:
    if op.peer < 0 or op.peer == me:
        return []
    peer = board.dumps.get(op.peer)
    answers = peer is not None and any(
        other.p2p and other.group == op.group and other.peer == me and other.sends != op.sends for other in peer.pending
    )
    return [Edge(me, op.peer, op, Why.BEHIND if answers else Why.ABSENT)]


def _mismatches(board: _Board) -> tuple[Mismatch, ...]:
    found = []
    for (name, seq), entered in board.entered.items():
        kinds: dict[str, list[int]] = defaultdict(list)
        for rank, op in entered.items():
            compared = "" if op.name.lower() in _ANY_SHAPE | _ONE_SIDED else f" {op.shape}"
            kinds[op.name + compared].append(rank)
        if len(kinds) > 1 and name in board.groups:
            told = sorted(((what, tuple(sorted(who))) for what, who in kinds.items()), key=lambda k: (-len(k[1]), k[0]))
            found.append(Mismatch(board.groups[name], seq, tuple(told)))
    return tuple(sorted(found, key=lambda m: (m.group.name, m.seq)))
