"""Compares the dumps of all ranks: which rank waits for which, and in which operation.

An operation that a rank has enqueued and that is not complete waits for one of three things: members that never
enqueued it (`absent`); its own device, if other members have completed it (`stuck`); or an operation before it on a
member's device (`behind`). A send and its receive are matched by their place in the order of that direction. A rank
that other ranks wait for, and that has no open operation, does not wait for another rank.

The state of an operation is computed once for all its members: work grows with entries, not with pairs of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_robust.localize.recorder.dump import Exchange, Operation, ProcessGroup, RankDump

_ONE_SIDED = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "scatter", "gather"})
"""Some members may complete these operations before others begin them, so that does not show a stuck device."""
_ANY_SHAPE = frozenset({"all_to_all", "alltoall_base", "alltoall", "gather", "scatter", "barrier"})
"""Sizes may differ between members."""


@dataclass(frozen=True)
class Hold:
    """An operation that waits for ranks.

    Attributes:
        op: The operation, as one of the waiting ranks noted it.
        waiters: Ranks that have the operation pending, as the next one in its group.
        absent: Members that never enqueued it, by their own dumps.
        undumped: Members without a dump, so nothing is known of them.
        behind: Members that enqueued it, and have another operation before it on their device.
    """

    op: Operation
    waiters: tuple[int, ...]
    absent: tuple[int, ...] = ()
    undumped: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mismatch:
    """Members of one group that entered different operations under one number."""

    group: ProcessGroup
    seq: int
    entered: tuple[tuple[str, tuple[int, ...]], ...]
    """Each operation and the ranks that entered it; the most common first."""


@dataclass(frozen=True)
class Alignment:
    """The result of comparing all dumps.

    Attributes:
        holds: Operations that wait for ranks.
        stuck: Ranks whose own device holds an operation that others have completed, with the first such operation.
        idle: Ranks whose device has nothing to do, so that their host is held.
        unstarted: Ranks whose device never began its next operation, though all other members' devices began it.
        closed: Operations that all members joined, each as its first, and that no member has completed.
        running: Operations that all members' devices have begun beside another one, and that no member has completed.
        mismatches: Different operations under one number: a fault of the program.
        undumped: Members of the groups without a dump.
    """

    holds: tuple[Hold, ...]
    stuck: Mapping[int, tuple[Operation, tuple[int, ...]]]
    idle: frozenset[int]
    unstarted: Mapping[int, tuple[Operation, tuple[int, ...]]]
    closed: tuple[tuple[ProcessGroup, Operation], ...]
    running: tuple[tuple[ProcessGroup, Operation], ...]
    mismatches: tuple[Mismatch, ...]
    undumped: tuple[int, ...]


@dataclass
class _Found:
    holds: list[Hold] = field(default_factory=list)
    stuck: dict[int, tuple[Operation, tuple[int, ...]]] = field(default_factory=dict)
    unstarted: dict[int, tuple[Operation, tuple[int, ...]]] = field(default_factory=dict)
    closed: list[tuple[ProcessGroup, Operation]] = field(default_factory=list)
    running: list[tuple[ProcessGroup, Operation]] = field(default_factory=list)


class _Board:
    """The operations that each member of each group has enqueued and completed."""

    def __init__(self, dumps: Mapping[int, RankDump]) -> None:
        self.dumps = dumps
        self.groups: dict[str, ProcessGroup] = {}
        self.entered: dict[tuple[str, int], dict[int, Operation]] = defaultdict(dict)
        self._mixed = {op.group for d in dumps.values() for op in d.pending if op.p2p}
        for dump in dumps.values():
            self.groups.update(dump.groups)
            for op in dump.pending:
                if not op.p2p:
                    self.entered[op.group, op.seq][dump.rank] = op
        self._counters = self._count()

    def _count(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (group, rank) → (last enqueued, last completed); a process's group numbers are matched by use."""
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

    def joined(self, rank: int, op: Operation) -> bool | None:
        """Return whether this member has enqueued the operation; None if its dump does not show it."""
        if rank in self.entered[op.group, op.seq]:
            return True
        counters = self._counters.get((op.group, rank))
        return None if counters is None else counters[0] >= op.seq

    def completed(self, rank: int, op: Operation) -> bool:
        """Return whether the operation is known to be complete on this member's device."""
        counters = self._counters.get((op.group, rank))
        return counters is not None and counters[1] >= op.seq and rank not in self.entered[op.group, op.seq]


def align(dumps: Iterable[RankDump]) -> Alignment:
    """Compare the dumps. Of two dumps of one rank, the later one counts."""
    board = _Board({d.rank: d for d in dumps})
    found = _Found()
    waiters: dict[tuple[str, int], list[int]] = defaultdict(list)
    for dump in board.dumps.values():
        for op in _heads(dump.pending):
            if op.group in board.groups and op.p2p:
                _pair(board, dump.rank, op, found)
            elif op.group in board.groups:
                waiters[op.group, op.seq].append(dump.rank)
    for (name, seq), ranks in waiters.items():
        _collective(board, board.groups[name], seq, tuple(ranks), found)
    members = {rank for group in board.groups.values() for rank in group.ranks}
    return Alignment(
        tuple(found.holds),
        found.stuck,
        frozenset(d.rank for d in board.dumps.values() if not d.pending),
        found.unstarted,
        tuple(found.closed),
        tuple(found.running),
        _mismatches(board),
        tuple(sorted(members - set(board.dumps))),
    )


def _heads(pending: Iterable[Operation]) -> list[Operation]:
    """Return the first pending operation of each group, and of each peer in point-to-point: others wait behind it."""
    heads: dict[tuple[str, int], Operation] = {}
    for op in pending:
        heads.setdefault((op.group, op.peer), op)
    return list(heads.values())


def _collective(board: _Board, group: ProcessGroup, seq: int, waiters: tuple[int, ...], found: _Found) -> None:
    entered = board.entered[group.name, seq]
    op = entered[waiters[0]]
    seen = _members(board, group, op)
    absent, undumped, done = tuple(seen["absent"]), tuple(seen["undumped"]), tuple(seen["done"])
    if absent or undumped:
        found.holds.append(Hold(op, waiters, absent, undumped))
    if absent or op.name.lower() in _ONE_SIDED:
        return
    if done:
        # An operation that one member has completed was joined by all members, also by members without a dump.
        for rank in waiters:
            found.stuck.setdefault(rank, (entered[rank], done))
    elif not undumped and not seen["unknown"]:
        behind = tuple(rank for rank in group.ranks if not _is_first(board, rank, op))
        if behind and all(mine.state == "started" for mine in entered.values()):
            # Each communicator has a stream of its own: an operation that has begun on all devices no longer waits.
            found.running.append((group, op))
        if behind:
            found.holds.append(Hold(op, waiters, behind=behind))
        else:
            found.closed.append((group, op))
            _began(entered, found.unstarted)


def _members(board: _Board, group: ProcessGroup, op: Operation) -> dict[str, list[int]]:
    """Return the members of a group by what is known of them and an operation; members not listed have it pending."""
    seen: dict[str, list[int]] = defaultdict(list)
    for rank in group.ranks:
        if rank not in board.dumps:
            seen["undumped"].append(rank)
        elif (joined := board.joined(rank, op)) is None:
            seen["unknown"].append(rank)
        elif not joined:
            seen["absent"].append(rank)
        elif board.completed(rank, op):
            seen["done"].append(rank)
    return seen


def _began(entered: Mapping[int, Operation], found: dict[int, tuple[Operation, tuple[int, ...]]]) -> None:
    """Note the few members whose devices never began an operation that the other members' devices began."""
    began = tuple(sorted(rank for rank, op in entered.items() if op.state == "started"))
    late = [rank for rank, op in entered.items() if op.state != "started"]
    if len(late) <= len(began):
        found.update((rank, (entered[rank], began)) for rank in late)


def _is_first(board: _Board, rank: int, op: Operation) -> bool:
    """Return whether no operation lies before this one on the member's device, as far as its recorder knows."""
    mine = board.entered[op.group, op.seq].get(rank)
    pending = board.dumps[rank].pending
    return mine is not None and bool(pending) and pending[0].order == mine.order


def _pair(board: _Board, me: int, op: Operation, found: _Found) -> None:
    if op.peer < 0 or op.peer == me:
        return
    peer = board.dumps.get(op.peer)
    if peer is None:
        found.holds.append(Hold(op, (me,), undumped=(op.peer,)))
        return
    at = _answer_at(board.dumps[me], peer, op)
    if at < 0:
        # The rank's own device or the link holds the operation, unless another operation lies before it there.
        if op is board.dumps[me].pending[0]:
            found.stuck.setdefault(me, (op, (op.peer,)))
        return
    answers = [o for o in peer.pending if o.p2p and o.group == op.group and o.peer == me and o.sends != op.sends]
    answer = answers[at] if at < len(answers) else None
    if answer is None:
        found.holds.append(Hold(op, (me,), absent=(op.peer,)))
    elif answer is not peer.pending[0]:
        found.holds.append(Hold(op, (me,), behind=(op.peer,)))
    elif me < op.peer and op is board.dumps[me].pending[0]:
        found.closed.append((ProcessGroup("", f"the pair in {board.groups[op.group].desc}", (me, op.peer)), op))
        _began({me: op, op.peer: answer}, found.unstarted)


def _answer_at(mine: RankDump, theirs: RankDump, op: Operation) -> int:
    """Return which of the peer's pending operations answers this one, 0 for the first; -1 if the peer has completed it.

    The n-th message that one end sends is the n-th message that the other end receives. If a recorder does not reach
    back to the first message, sequence numbers are compared: two ranks without another partner in the group count
    alike.
    """
    here = mine.exchanges.get((op.group, op.peer, op.sends), Exchange(0, -1))
    there = theirs.exchanges.get((op.group, mine.rank, not op.sends), Exchange(0, -1))
    if mine.whole and theirs.whole:
        return max(here.completed - there.completed, -1)
    alone = _only_partner(mine, op.group, theirs.rank) and _only_partner(theirs, op.group, mine.rank)
    return -1 if alone and there.last_seq >= op.seq else 0


def _only_partner(dump: RankDump, group: str, other: int) -> bool:
    pending = {op.peer for op in dump.pending if op.p2p and op.group == group}
    return pending | {peer for name, peer, _ in dump.exchanges if name == group} <= {other}


def _mismatches(board: _Board) -> tuple[Mismatch, ...]:
    found = []
    for (name, seq), entered in board.entered.items():
        kinds: dict[str, list[int]] = defaultdict(list)
        for rank, op in entered.items():
            compared = "" if op.name.lower() in _ANY_SHAPE | _ONE_SIDED else f" {op.shape}"
            kinds[op.name + compared].append(rank)
        if len(kinds) > 1 and name in board.groups:
            entries = ((what, tuple(sorted(who))) for what, who in kinds.items())
            ordered = sorted(entries, key=lambda entry: (-len(entry[1]), entry[0]))
            found.append(Mismatch(board.groups[name], seq, tuple(ordered)))
    return tuple(sorted(found, key=lambda m: (m.group.name, m.seq)))
