"""Finds where the waiting ends, for the vote on groups: a graph of which rank waits for which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.localize.layout import Groups, ParallelGroup
from slurm_robust.localize.votes.group_scopes import ONE_SIDED, Scope


@dataclass(frozen=True)
class WaitSink:
    """Ranks that only wait for each other, and that other ranks wait for.

    Attributes:
        ranks: One rank outside any collective, or ranks that wait in a circle: all members of a group, a pair.
        group: The group in which all these ranks wait, if the circle is a group.
        waiters: Ranks outside that wait for these ranks, directly or through others.
        one_operation: The ranks wait in one operation, as far as their code shows: a link or a device may hold it. A
            circle through several operations comes from the program, not from a machine.
    """

    ranks: tuple[int, ...]
    group: ParallelGroup | None
    waiters: frozenset[int]
    one_operation: bool = True


@dataclass(frozen=True)
class MixedGroup:
    """A group whose members all wait in it, but in different operations."""

    group: ParallelGroup
    entered: tuple[tuple[str, tuple[int, ...]], ...]
    """Each operation and the ranks in it; the most common operation first."""


class WaitGraph:
    """Edges from each waiting rank to the ranks it waits for. A collective is a point of its own between them.

    Args:
        scopes: The group that each waiting rank waits in; None if its code does not show it.
        others: Ranks that do not wait, or about which nothing is known.
        groups: The job's parallel groups.
    """

    def __init__(self, scopes: Mapping[int, Scope | None], others: Iterable[int], groups: Groups) -> None:
        self._edges: dict[int, list[int]] = {rank: [] for rank in sorted({*scopes, *others})}
        self._closed: dict[frozenset[int], ParallelGroup] = {}
        self._points: dict[ParallelGroup, int] = {}
        self._scopes = scopes
        self.mixed: list[MixedGroup] = []
        """Groups in which all members wait, and whose members cannot meet."""
        self.conflict = False
        """Members of some group, whole or not, stand in different operations: a wrong layout, or the program."""
        unknown = []
        for rank, scope in scopes.items():
            group = groups.of(scope.kind, rank) if scope is not None else None
            if scope is None or group is None:
                unknown.append(rank)
            elif scope.toward:
                self._edges[rank] += _neighbours(group, rank, scope.toward)
            else:
                self._edges[rank].append(self._point(group, scopes))
        self.unknown = tuple(unknown)
        """Ranks that wait, though it is not known for whom."""
        for targets in tuple(self._edges.values()):
            for target in targets:
                self._edges.setdefault(target, [])

    def _point(self, group: ParallelGroup, scopes: Mapping[int, Scope | None]) -> int:
        if (known := self._points.get(group)) is not None:
            return known
        point = self._points[group] = -1 - len(self._points)
        absent = [m for m in group.ranks if (s := scopes.get(m)) is None or s.toward or s.kind != group.kind]
        self._edges[point] = absent or list(group.ranks)
        entered = _entered(group, scopes)
        self.conflict = self.conflict or len(entered) > 1
        if not absent and len(entered) < 2:
            self._closed[frozenset(group.ranks)] = group
        elif not absent and not ONE_SIDED.intersection(operation for operation, _ in entered):
            self.mixed.append(MixedGroup(group, entered))
        return point

    def _in_one_operation(self, ranks: tuple[int, ...]) -> bool:
        """Return whether the ranks wait in one operation: a whole group, ranks outside any, or exchanging neighbours.

        Neighbours that all send, or all receive, do not exchange. Ranks that wait in a circle through several groups
        have entered these groups in different orders: a deadlock.
        """
        here = [scope for rank in ranks if (scope := self._scopes.get(rank)) is not None]
        if frozenset(ranks) in self._closed or not here:
            return True
        one_way = {scope.operation for scope in here}
        return all(scope.toward for scope in here) and one_way not in ({"send"}, {"recv"})

    def sinks(self) -> tuple[WaitSink, ...]:
        """Return where the waiting ends, the most waited for first, without ranks that no rank waits for."""
        parts = _strong_parts(self._edges)
        part_of = {member: number for number, part in enumerate(parts) for member in part}
        before: dict[int, set[int]] = {}
        ends = set(range(len(parts)))
        for member, targets in self._edges.items():
            for target in targets:
                if part_of[target] != part_of[member]:
                    before.setdefault(part_of[target], set()).add(part_of[member])
                    ends.discard(part_of[member])
        found = []
        for end in ends:
            ranks = tuple(sorted(member for member in parts[end] if member >= 0))
            waiters = frozenset(m for part in _reaching(end, before) for m in parts[part] if m >= 0)
            if waiters and ranks:
                group, alike = self._closed.get(frozenset(ranks)), self._in_one_operation(ranks)
                found.append(WaitSink(ranks, group, waiters, alike))
        return tuple(sorted(found, key=lambda sink: (-len(sink.waiters), sink.ranks)))


def _entered(group: ParallelGroup, scopes: Mapping[int, Scope | None]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the operations of the members of a group, and who is in each; unknown members may be in any."""
    entered: dict[str, list[int]] = {}
    for rank in group.ranks:
        scope = scopes.get(rank)
        if scope is not None and scope.operation and scope.kind == group.kind and not scope.toward:
            entered.setdefault(scope.operation, []).append(rank)
    by_size = sorted(entered.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple((operation, tuple(ranks)) for operation, ranks in by_size)


def _neighbours(group: ParallelGroup, rank: int, toward: Sequence[int]) -> list[int]:
    at = group.ranks.index(rank)
    if len(toward) == 1:
        # The stage before the first is the last one, as in interleaved pipelines; other pipelines do not wait there.
        return [group.ranks[(at + toward[0]) % len(group.ranks)]]
    return [group.ranks[at + step] for step in toward if 0 <= at + step < len(group.ranks)]


def _reaching(end: int, before: Mapping[int, set[int]]) -> set[int]:
    seen: set[int] = set()
    todo = list(before.get(end, ()))
    while todo:
        part = todo.pop()
        if part not in seen:
            seen.add(part)
            todo.extend(before.get(part, ()))
    return seen


def _strong_parts(edges: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return parts whose members all reach each other (Tarjan's algorithm, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    open_: set[int] = set()
    parts: list[list[int]] = []
    for start in edges:
        if start in order:
            continue
        work = [(start, iter(edges[start]))]
        order[start] = low[start] = len(order)
        stack.append(start)
        open_.add(start)
        while work:
            member, targets = work[-1]
            step = next((t for t in targets if t not in order or t in open_), None)
            if step is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[member])
                if low[member] == order[member]:
                    part = [stack.pop()]
                    while part[-1] != member:
                        part.append(stack.pop())
                    open_.difference_update(part)
                    parts.append(part)
            elif step in order:
                low[member] = min(low[member], order[step])
            else:
                order[step] = low[step] = len(order)
                stack.append(step)
                open_.add(step)
                work.append((step, iter(edges[step])))
    return parts
