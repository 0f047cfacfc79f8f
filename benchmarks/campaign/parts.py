"""What a simulated world is made of: what a program does next, what lies on a device, operations, ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

FOREVER_S = 1e12


@dataclass(frozen=True)
class Act:
    """One thing that a program does next.

    Attributes:
        kind: cpu, kernel, comm, pair, wait, sync, load, file, phase or step.
        place: Key of the frames that its host shows meanwhile (`places`).
        seconds: Of the host (cpu, load, file) or of the device.
        group: Kind of the group of a collective.
        op: The collective's name as the recorder writes it; a phase's name.
        size: Elements: members of one operation must agree.
        peers: Of a batch of point-to-point operations: (sends, peer, tag).
        blocking: The stream goes on only when it is complete.
        hold: Name under which a later `wait` finds it.
        root: The world rank that a broadcast comes from.
    """

    kind: str
    place: str = ""
    seconds: float = 0.0
    group: str = ""
    op: str = ""
    size: int = 1024
    peers: tuple[tuple[bool, int, str], ...] = ()
    blocking: bool = True
    hold: str = ""
    root: int = -1


class Item:
    """Something that a host has put on its device."""

    __slots__ = ("deps", "done_s", "enqueued_s", "host", "index", "op", "order", "ready_s", "seconds", "then", "wakes")

    def __init__(self, host: Host, index: int, seconds: float, op: Op | None, now_s: float) -> None:
        self.host, self.index, self.seconds, self.op = host, index, seconds, op
        self.enqueued_s = now_s
        self.ready_s = self.done_s = FOREVER_S
        self.deps = 0
        self.order = 0
        self.then: list[Item] = []
        self.wakes = False


class Op:
    """One operation of a group, as its members enter it.

    `members` are those that are simulated, `everyone` all ranks that take part (None: the same).
    """

    __slots__ = ("everyone", "group", "items", "members", "name", "p2p", "ready", "root", "seq")

    def __init__(self, group: str, seq: int, name: str, members: tuple[int, ...], root: int = -1) -> None:
        self.group, self.seq, self.name, self.members, self.root = group, seq, name, members, root
        self.everyone = members
        self.p2p = False
        self.ready = 0
        """Members whose device has come to it."""
        self.items: dict[int, Item] = {}


@dataclass
class Entry:
    """What the flight recorder notes when an operation is enqueued."""

    item: Item
    kind: str
    group: str
    number: int
    name: str
    seq: int
    size: int
    p2p: bool
    order: int = 0


@dataclass(eq=False)
class Host:
    """One rank: its process, its device, and what they have come to."""

    rank: int
    program: Iterator[Act]
    depth: int
    act: Act = Act("cpu", "start")
    since_s: float = 0.0
    step: int = 0
    phase: str = "train"
    stepped_s: float = 0.0
    blocked_on: Item | None = None
    stuck: bool = False
    dead_s: float = FOREVER_S
    device_stops_at: int = -1
    items: list[Item] = field(default_factory=list)
    tail: list[Item] = field(default_factory=list)
    streams: dict[str, Item] = field(default_factory=dict)
    held: dict[str, list[Item]] = field(default_factory=dict)
    entered: dict[str, int] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    retry: bool = False
    """Its action could not begin: the launch queue is full."""
    waits: list[Item] = field(default_factory=list)
    acts_in_step: int = 0
    stops_inside: bool = False
    """The operation at `device_stops_at` still takes part; it never completes here."""

    @property
    def device_dead(self) -> bool:
        """Nothing more completes on it."""
        return self.dead_s < FOREVER_S or self.device_stops_at >= 0
