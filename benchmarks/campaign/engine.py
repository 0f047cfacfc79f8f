"""Discrete events: hosts that launch work ahead, devices that run it in order, operations that need all their members.

A host runs a program (a generator of actions). It stands still where the program waits: for the device, for a full
launch queue, for its data, for itself. Nothing here knows what a fault means; `faults` breaks a host, a device or a
path, and the rest follows.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterator

from campaign.alike import MEETING, Cast, everyone
from campaign.layout import Group, Layout
from campaign.parts import FOREVER_S, Act, Entry, Host, Item, Op

Watch = Callable[["World", Host, Act], bool]
"""Asked before each action of a host: True if the host stands there for ever."""


class World:
    """All hosts, and the clock."""

    def __init__(self, layout: Layout, programs: Callable[[int], Iterator[Act]], depth: int, cast: Cast | None) -> None:
        self.layout = layout
        self.cast = cast or everyone(layout)
        self.hosts = {rank: Host(rank, programs(rank), depth) for rank in self.cast.acting}
        self.now_s = 0.0
        self.watches: dict[int, Watch] = {}
        self.broken: Callable[[Op], bool] | None = None
        self.silent_nodes: set[str] = set()
        self._ops: dict[tuple[object, ...], Op] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()
        self._next: dict[int, Item | None] = {}
        self._acting: dict[str, tuple[int, ...]] = {}
        for host in self.hosts.values():
            self._at(0.0, lambda host=host: self._go(host))  # type: ignore[misc]

    def run(self, until_s: float) -> None:
        """Let everything happen that happens until then."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, happen = heapq.heappop(self._heap)
            happen()
        self.now_s = until_s

    def _at(self, when_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when_s, next(self._ticket), happen))

    # Hosts

    def _go(self, host: Host) -> None:
        while not host.stuck and host.dead_s == FOREVER_S:
            host.waits = [item for item in host.waits if item.done_s == FOREVER_S]
            if host.waits:
                self._wake_on(host, host.waits[0])
                return
            if host.retry:
                act, host.retry = host.act, False
            else:
                following = next(host.program, None)
                if following is None:
                    return
                act = host.act = following
                host.since_s = self.now_s
                host.acts_in_step += 1
                watch = self.watches.get(host.rank)
                if watch is not None and watch(self, host, act):
                    host.stuck = True
                    return
            if not self._do(host, act):
                return

    def _do(self, host: Host, act: Act) -> bool:
        """Begin an action; False if the host goes on later."""
        kind = act.kind
        if kind in ("kernel", "comm", "pair"):
            return self._launch(host, act)
        if kind in ("cpu", "load", "file"):
            self._at(self.now_s + act.seconds, lambda: self._go(host))
            return False
        if kind == "wait":
            waits = host.held.pop(act.hold, [])
            if host.depth == 0:
                return self._block(host, waits)
            host.tail = [*host.tail, *waits]
        elif kind == "sync":
            return self._block(host, [*host.tail, *host.streams.values()])
        elif kind == "phase":
            host.phase = act.op
        elif kind == "step":
            host.step += 1
            host.stepped_s = self.now_s
            host.acts_in_step = 0
        return True

    def _block(self, host: Host, items: list[Item]) -> bool:
        host.waits = [item for item in items if item.done_s == FOREVER_S]
        if not host.waits:
            return True
        self._wake_on(host, host.waits[0])
        return False

    def _wake_on(self, host: Host, item: Item) -> None:
        host.blocked_on = item
        item.wakes = True

    def _launch(self, host: Host, act: Act) -> bool:
        if host.depth == 0 and act.kind == "kernel":
            self._at(self.now_s + act.seconds, lambda: self._go(host))
            return False
        if host.depth and len(host.items) >= host.depth:
            oldest = host.items[len(host.items) - host.depth]
            if oldest.done_s == FOREVER_S:
                host.retry = True
                self._wake_on(host, oldest)
                return False
        made = self._items(host, act)
        if act.hold:
            host.held.setdefault(act.hold, []).extend(made)
        if act.blocking:
            host.tail = made
            if host.depth == 0:
                return self._block(host, made)
        return True

    # Devices

    def _items(self, host: Host, act: Act) -> list[Item]:
        if act.kind == "kernel":
            return [self._put(host, act.seconds, None, host.tail)]
        if act.kind == "comm":
            group = self.layout.group(act.group, host.rank)
            if len(group.ranks) == 1:
                return host.tail
            seq = host.entered[group.name] = host.entered.get(group.name, 0) + 1
            op = self._ops.get((group.name, seq))
            if op is None:
                op = self._ops[group.name, seq] = Op(group.name, seq, act.op, self._actors(group), act.root)
                op.everyone = group.ranks
            before = [*host.tail, *filter(None, [host.streams.get(group.name)])]
            item = self._put(host, act.seconds, op, before)
            host.streams[group.name] = item
            self._note(host, Entry(item, act.group, group.name, group.number, act.op, seq, act.size, p2p=False))
            return [item]
        return [self._pair(host, act, *peer) for peer in act.peers]

    def _pair(self, host: Host, act: Act, sends: bool, peer: int, tag: str) -> Item:
        group = self.layout.group(act.group, host.rank)
        ends = (host.rank, peer) if sends else (peer, host.rank)
        channel = f"{tag}:{ends[0]}>{ends[1]}"
        count = host.entered[channel] = host.entered.get(channel, 0) + 1
        op = self._ops.setdefault((channel, count), Op(group.name, count, "pair", ends))
        op.p2p = True
        item = self._put(host, act.seconds, op, host.tail)
        seq = host.entered[group.name + "p2p"] = host.entered.get(group.name + "p2p", 0) + 1
        mine, other = group.ranks.index(host.rank), group.ranks.index(peer)
        name = f"send {mine}->{other}" if sends else f"recv {mine}<-{other}"
        self._note(host, Entry(item, act.group, group.name, group.number, name, seq, act.size, p2p=True))
        return item

    def _actors(self, group: Group) -> tuple[int, ...]:
        if group.kind not in MEETING:
            return group.ranks  # all of one replica are simulated, or none
        known = self._acting.get(group.name)
        if known is None:
            known = self._acting[group.name] = tuple(rank for rank in group.ranks if rank in self.hosts)
        return known

    def host_of(self, rank: int) -> Host:
        """The host that is simulated for this rank."""
        return self.hosts[self.cast.stands_for[rank]]

    def never_entered(self, rank: int, seen: Collection[int]) -> bool:
        """Somebody of `seen` has entered an operation that this rank is a member of and has not entered."""
        actor, shift = self.cast.stands_for[rank], self.cast.shift(rank)
        for op in self._ops.values():
            if len(op.items) == len(op.members) or actor in op.items or actor not in op.members:
                continue
            if op.everyone is op.members:
                entered = (member + shift for member in op.items)
            else:
                entered = (member for member in op.everyone if self.cast.stands_for[member] in op.items)
            if any(member in seen for member in entered):
                return True
        return False

    def _note(self, host: Host, entry: Entry) -> None:
        entry.order = entry.item.order = len(host.entries)
        host.entries.append(entry)

    def _put(self, host: Host, seconds: float, op: Op | None, before: list[Item]) -> Item:
        item = Item(host, len(host.items), seconds, op, self.now_s)
        host.items.append(item)
        for earlier in before:
            if earlier.done_s == FOREVER_S:
                earlier.then.append(item)
                item.deps += 1
        if op is not None:
            op.items[host.rank] = item
        if item.deps == 0:
            self._ready(item)
        return item

    def _ready(self, item: Item) -> None:
        host = item.host
        # A launched kernel still starts on a device whose host is stopped; on a dead one nothing does.
        stops_at = host.device_stops_at + host.stops_inside
        if host.dead_s < FOREVER_S or (host.device_stops_at >= 0 and stops_at <= item.index):
            return
        item.ready_s = self.now_s
        if item.op is None:
            self._at(self.now_s + item.seconds, lambda: self._done(item))
            return
        op = item.op
        op.ready += 1
        if op.ready == len(op.members):
            self._at(self.now_s + item.seconds, lambda: self._complete(op))
        elif op.root == host.rank:
            self._at(self.now_s + item.seconds, lambda: self._done(item))  # a small broadcast leaves its root at once
        elif op.root >= 0 and op.root in op.items and op.items[op.root].ready_s < FOREVER_S:
            self._at(self.now_s + item.seconds, lambda: self._done(item))

    def _complete(self, op: Op) -> None:
        if self.broken is not None and self.broken(op):
            return
        if any(self.hosts[m].dead_s < FOREVER_S for m in op.members):
            return
        if len({self.hosts[m].entries[op.items[m].order].name for m in op.members if not op.p2p}) > 1:
            return  # NCCL does not notice that its members ask for different things: it waits
        if len({self.hosts[m].entries[op.items[m].order].size for m in op.members}) > 1 and op.name != "all_to_all":
            return
        for item in list(op.items.values()):
            self._done(item)

    def _done(self, item: Item) -> None:
        host = item.host
        if item.done_s < FOREVER_S or host.dead_s < FOREVER_S or 0 <= host.device_stops_at <= item.index:
            return
        item.done_s = self.now_s
        if item.op is not None and item.op.root == host.rank:
            for other in item.op.items.values():
                if other is not item and other.ready_s < FOREVER_S and other.done_s == FOREVER_S:
                    self._at(self.now_s + other.seconds, lambda other=other: self._done(other))  # type: ignore[misc]
        for later in item.then:
            later.deps -= 1
            if later.deps == 0:
                self._ready(later)
        item.then = []
        if item.wakes and host.blocked_on is item:
            host.blocked_on = None
            self._at(self.now_s, lambda: self._go(host))

    def ops(self) -> list[Op]:
        """All operations that anybody has entered."""
        return list(self._ops.values())

    def next_of(self, rank: int) -> Item | None:
        """The first operation that this rank's host has entered and that is not complete there."""
        if rank not in self._next:
            entries = self.hosts[rank].entries
            self._next[rank] = next((e.item for e in entries if e.item.done_s == FOREVER_S), None)
        return self._next[rank]
