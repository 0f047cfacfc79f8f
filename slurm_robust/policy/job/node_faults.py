"""Decides what a job does about faults that its nodes report: leave now, after the next checkpoint, or stay. Pure.

| urgency | what is done |
|---|---|
| `now` | the node is left at once |
| `if_repeated` | the node is left at once if the same kind came twice on one node and port within `REPEAT_WITHIN_S` |
| `at_next_checkpoint` | left after the next verified checkpoint, or after `supervise.fault_wait_s` if one is known |
| `note` | nothing but a line in the story |

A fault of RDMA ports is a `note` for a job on one node, and for one that was not seen to train over RDMA.

Faults on too many nodes at once (a storm, `_stormy`) share a cause outside the nodes: none of these nodes is left.
Sources that are polled report one event of all nodes at times that are seconds apart. So an urgent fault waits
`settle_s` for faults of other nodes, and a node that the job has just left counts towards a storm for another
`AT_ONCE_S`.

A mild fault (`at_next_checkpoint`) on one new node after the other moves a job `MILD_MOVES` times in a day at most, and
never because of one sort of fault on a third node (`_why_stays`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_robust.core.model import Failure, FailureCause, Signal, SignalKind
from slurm_robust.marks.node_findings import AT_NEXT_CHECKPOINT, IF_REPEATED, NOTE, NOW, about_rdma
from slurm_robust.policy.job.eviction import max_evictions
from slurm_robust.policy.job.situation import NODE_REPORT

REPEAT_WITHIN_S = 300.0
ONE_EVENT_S = 10.0
"""Findings that are closer in time are one event: both ports of a card, or one finding that is reported again."""
AT_ONCE_S = 60.0
"""Faults on several nodes that are at most so far apart are one event: sources are polled up to 30 s apart."""
SETTLE_S = 1.0
"""An urgent fault waits so long for faults of other nodes."""
POLLED_SETTLE_S = 2.0
"""An urgent fault from a polled source waits so long; a whole period would be too long for a lost GPU."""
MILD_MOVES = 3
"""A job is moved for mild faults at most so often within `MILD_WITHIN_S`."""
MILD_NODES_OF_ONE_SORT = 2
"""If more nodes than this had mild faults of one sort within `MILD_WITHIN_S`, the cause is one that nodes share."""
MILD_WITHIN_S = 86_400.0
_MOST_REMEMBERED = 64
DRAINED = "drained"
"""The kind of a fault that is only known as a drain: two drains need not have anything in common."""
_POLLED = frozenset({"poll", "nvml", "rdma", "agent"})
_EVENTS = frozenset({"xid", "sxid"})
"""Kinds that NVML reports as they happen."""


@dataclass(frozen=True)
class FaultMove:
    """A node that a job has left for a fault of the node's own. A job remembers its moves over all its attempts.

    Attributes:
        at_s: When the node was left; nodes that are left together have the same time.
        text: What the node reported.
    """

    at_s: float
    node: str
    urgency: str
    kind: str
    code: int | None = None
    text: str = ""

    @classmethod
    def of(cls, fault: Signal, at_s: float) -> FaultMove:
        """Make the move for the node of this fault, which is left now."""
        evidence = fault.evidence
        return cls(at_s, fault.node, _urgency(fault), str(evidence.get("kind")), evidence.get("code"), fault.detail)

    @property
    def signal(self) -> Signal:
        """The fault as it counts in a storm: at the time at which the node was left."""
        evidence = {"kind": self.kind, "urgency": self.urgency, "gpus": (), "port": "", "code": self.code}
        return Signal(SignalKind.NODE_FAULT, self.at_s, "", self.text, self.node, evidence=evidence)


@dataclass(frozen=True)
class StormFault:
    """A sort of fault that came to many nodes at once, at about this time, and that people were told of."""

    at_s: float
    urgency: str
    kind: str
    code: int | None = None

    @classmethod
    def of(cls, fault: Signal) -> StormFault:
        """Make the value from a node's fault signal."""
        evidence = fault.evidence
        return cls(fault.at_s, _urgency(fault), str(evidence.get("kind")), evidence.get("code"))

    @property
    def signal(self) -> Signal:
        """The fault, of no node."""
        return FaultMove(self.at_s, "", self.urgency, self.kind, self.code).signal


@dataclass(frozen=True)
class FaultMemory:
    """The memory of a training's faulty nodes, over its attempts, its requeues and restarts of its supervisor.

    Attributes:
        moves: Nodes that the training left for faults of their own, oldest first.
        storms: Faults that were announced as storms, oldest first: more faults of a storm may come late, and old
            findings come again.
        handled_at_s: Node → time of its last fault that was acted on, or that nothing could be done about.
    """

    moves: tuple[FaultMove, ...] = ()
    storms: tuple[StormFault, ...] = ()
    handled_at_s: Mapping[str, float] = field(default_factory=dict)

    def moved(self, moves: Iterable[FaultMove]) -> FaultMemory:
        """Return the memory after these nodes were left."""
        return replace(self, moves=(*self.moves, *moves)[-_MOST_REMEMBERED:])

    def announced(self, storm: Iterable[Signal]) -> FaultMemory:
        """Return the memory after this storm was announced, without faults that add nothing to faults beside them."""
        known: defaultdict[tuple[object, ...], list[StormFault]] = defaultdict(list)
        for fault in sorted({*self.storms, *(StormFault.of(s) for s in storm)}, key=lambda s: s.at_s):
            known[_sort(fault.signal)].append(fault)
        kept = sorted((fault for some in known.values() for fault in _thinned(some)), key=lambda s: s.at_s)
        return replace(self, storms=tuple(kept[-_MOST_REMEMBERED:]))

    def handled(self, at_s: Mapping[str, float]) -> FaultMemory:
        """Return the memory after nothing more is to be done about the faults of these nodes up to these times."""
        known = {**self.handled_at_s, **{n: max(t, self.handled_at_s.get(n, t)) for n, t in at_s.items()}}
        last = sorted(known.items(), key=lambda item: item[1])[-_MOST_REMEMBERED:]
        return replace(self, handled_at_s=dict(last))


def _thinned(faults: Sequence[StormFault]) -> list[StormFault]:
    """Return as few of these faults, of one sort and in order of time, as cover the same times within `AT_ONCE_S`."""
    kept: list[StormFault] = []
    for at, fault in enumerate(faults):
        last = at + 1 == len(faults) or faults[at + 1].at_s - fault.at_s > AT_ONCE_S
        if last or not kept or fault.at_s - kept[-1].at_s > AT_ONCE_S:
            kept.append(fault)
    return kept


@dataclass(frozen=True)
class FaultyNodes:
    """The nodes that a job should leave, each with the reason, and when.

    Attributes:
        leave_now: Nodes to leave at once.
        leave_later: Nodes to leave after the next verified checkpoint, without nodes that are left at once.
        storm: Faults on so many nodes at once that no node is left because of them, oldest first. Faults of nodes that
            were left just before are included.
        stays: Nodes with mild faults that are not left, since the job was moved often enough.
        faults: For each node to leave, the fault that decides it.
    """

    leave_now: Mapping[str, str] = field(default_factory=dict)
    leave_later: Mapping[str, str] = field(default_factory=dict)
    storm: tuple[Signal, ...] = ()
    stays: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Signal] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, str]:
        """All nodes to leave, with the reasons."""
        return {**self.leave_later, **self.leave_now}


def weigh(
    signals: Iterable[Signal], nodes: Collection[str], used: Collection[str], moves: Sequence[FaultMove] = ()
) -> FaultyNodes:
    """Return which of a job's nodes are to be left.

    Args:
        signals: All observed signals; only faults of nodes with an urgency above `note` count.
        nodes: The nodes of the job; faults of other nodes do not count.
        used: The nodes of the job that train; a storm is measured by their number.
        moves: Nodes that the job has left before.
    """
    faults = sorted((s for s in signals if s.node in nodes and _acts(s)), key=lambda s: s.at_s)
    left = [move.signal for move in moves]
    storm = _stormy([s for s in faults if s.node in used], left, max_evictions(len(used)))
    stormy = {id(s) for s in storm}
    single = [s for s in faults if id(s) not in stormy]
    leave_now: dict[str, str] = {}
    why: dict[str, Signal] = {}
    earlier: defaultdict[tuple[object, ...], list[Signal]] = defaultdict(list)
    for fault in single:
        same = earlier[_key(fault)]
        before = _same_before(fault, same)
        same.append(fault)
        if fault.node in leave_now:
            continue
        if _urgency(fault) == NOW:
            leave_now[fault.node], why[fault.node] = fault_text(fault), fault
        elif _urgency(fault) == IF_REPEATED and before is not None:
            apart_s = fault.at_s - before.at_s
            leave_now[fault.node] = f"{fault_text(fault)}, for the second time in {apart_s:.0f} s"
            why[fault.node] = fault
    leave_later: dict[str, str] = {}
    stays: dict[str, str] = {}
    for fault in (s for s in single if _urgency(s) == AT_NEXT_CHECKPOINT and s.node not in leave_now):
        if fault.node in leave_later:
            continue
        if stay := _why_stays(fault, moves):
            stays.setdefault(fault.node, f"{fault_text(fault)}; {stay}")
        else:
            leave_later[fault.node], why[fault.node] = fault_text(fault), fault
    stays = {node: text for node, text in stays.items() if node not in leave_later}
    return FaultyNodes(leave_now, leave_later, tuple(storm), stays, why)


def _why_stays(fault: Signal, moves: Iterable[FaultMove]) -> str:
    """Return why a node is not left for this mild fault; empty if it is left."""
    recent = [m for m in moves if m.urgency == AT_NEXT_CHECKPOINT and fault.at_s - m.at_s <= MILD_WITHIN_S]
    alike = {m.node for m in recent if _sort(m.signal) == _sort(fault) and m.node != fault.node}
    if fault.evidence.get("kind") != DRAINED and len(alike) >= MILD_NODES_OF_ONE_SORT:
        return (
            f"{', '.join(sorted(alike))} had the same within a day: a cause that nodes share, so this one stays in use"
        )
    if len({m.at_s for m in recent}) >= MILD_MOVES:
        return f"the job was moved {MILD_MOVES} times within a day for such faults, so this node stays in use"
    return ""


def settle_s(faults: Collection[Signal]) -> float:
    """Return how long these urgent faults wait for faults of other nodes."""
    polled = bool(faults) and all(s.source in _POLLED and s.evidence.get("kind") not in _EVENTS for s in faults)
    return POLLED_SETTLE_S if polled else SETTLE_S


def failure_of(nodes: Iterable[str]) -> Failure:
    """Return what these nodes report as a `Failure`, to be compared with other failures."""
    return Failure(NODE_REPORT, tuple(sorted(nodes)), FailureCause.NODE)


def urgency_here(kind: str, urgency: str, *, over_rdma: bool) -> str:
    """Return the urgency of a finding for this job; `over_rdma`: its nodes were seen to train over RDMA together."""
    return NOTE if about_rdma(kind) and not over_rdma else urgency


def fault_text(fault: Signal) -> str:
    """Return the reason for leaving a node, with the node's name and the fault."""
    return f"node {fault.node} reports {fault.detail}"


def _urgency(fault: Signal) -> str:
    return str(fault.evidence.get("urgency", NOTE))


def _acts(signal: Signal) -> bool:
    return signal.kind is SignalKind.NODE_FAULT and _urgency(signal) in (NOW, IF_REPEATED, AT_NEXT_CHECKPOINT)


def repeated(faults: Sequence[Signal]) -> bool:
    """Return whether the last of these faults, all of one kind, node and port, is a repetition."""
    return _same_before(faults[-1], faults[:-1]) is not None


def _same_before(fault: Signal, earlier: Sequence[Signal]) -> Signal | None:
    """Return the last earlier fault of this kind, node and port that is another event and not too long ago."""
    for other in reversed(earlier):
        apart_s = fault.at_s - other.at_s
        if apart_s > REPEAT_WITHIN_S:
            break
        if apart_s >= ONE_EVENT_S:
            return other
    return None


def _key(fault: Signal) -> tuple[object, ...]:
    return fault.node, fault.evidence.get("kind"), fault.evidence.get("port")


def _sort(fault: Signal) -> tuple[object, ...]:
    """Return what two faults have in common if they are of one sort: kind, code and urgency.

    All XIDs are of one kind, but a lost GPU and a row remap have nothing to do with each other.
    """
    return fault.evidence.get("kind"), fault.evidence.get("code"), _urgency(fault)


def belongs(fault: Signal, storm: Iterable[Signal]) -> bool:
    """Return whether a fault is a late one of an event that many nodes have reported."""
    return any(_together(fault, other) for other in storm)


def _together(one: Signal, other: Signal) -> bool:
    """Return whether two faults came at the same time, and are of one sort, or both urgent."""
    if abs(one.at_s - other.at_s) > AT_ONCE_S:
        return False
    return _sort(one) == _sort(other) or _urgency(one) == _urgency(other) == NOW


def _stormy(faults: Sequence[Signal], left: Sequence[Signal], bound: int) -> list[Signal]:
    """Return the faults that came at once on more than `bound` nodes, and are of one sort or all urgent.

    Faults of nodes that were `left` are included, if faults of nodes in use are among the result, too.
    """
    alike: defaultdict[tuple[object, ...], list[Signal]] = defaultdict(list)
    ordered = sorted([*left, *faults], key=lambda s: s.at_s)
    for fault in ordered:
        alike[_sort(fault)].append(fault)
    many = _on_many_nodes([s for s in ordered if _urgency(s) == NOW], bound)
    for group in alike.values():
        many |= _on_many_nodes(group, bound)
    stormy = [s for s in ordered if id(s) in many]
    return stormy if any(id(s) in many for s in faults) else []


def _on_many_nodes(faults: Sequence[Signal], bound: int) -> set[int]:
    """Return the identities of faults with reports of more than `bound` nodes within `AT_ONCE_S` before or after.

    The faults are in order of time, so a window moves over them.
    """
    many: set[int] = set()
    nodes: Counter[str] = Counter()
    first = end = 0
    for fault in faults:
        while end < len(faults) and faults[end].at_s - fault.at_s <= AT_ONCE_S:
            nodes[faults[end].node] += 1
            end += 1
        while fault.at_s - faults[first].at_s > AT_ONCE_S:
            gone = faults[first].node
            nodes[gone] -= 1
            if not nodes[gone]:
                del nodes[gone]
            first += 1
        if len(nodes) > bound:
            many.add(id(fault))
    return many
