"""Keeps reports of nodes about themselves: findings of their node watch, and drains. Policy weighs what follows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_robust.core.model import Signal, SignalKind
from slurm_robust.core.text import shortened
from slurm_robust.marks.node_findings import AT_NEXT_CHECKPOINT, IF_REPEATED, MAX_FINDINGS, NOTE, NOW, NodeFinding
from slurm_robust.policy.job import node_faults as policy
from slurm_robust.policy.job.drains import drained, urgency_of_drain
from slurm_robust.policy.job.node_faults import FaultMemory, FaultMove, FaultyNodes
from slurm_robust.slurm.client import Node
from slurm_robust.supervise.agent.messages import NodeFindings
from slurm_robust.supervise.incident_folder import IncidentFolder

_MOST = 1024
"""Signals of an attempt: a flood must not fill the memory."""
_TOLD_AGAIN_S = 300.0
"""The story has a line for each fault; an equal fault within this time gets no line."""
_NOT_OVER_RDMA = "its job was not seen to train over RDMA between nodes"
_OLDEST_S = 30 * 86_400.0
_MAX_REASON = 160
_FORGET_EVERY_S = 10.0
_NO_RECOVERY = ("xid", "sxid")
"""Kinds of which a new finding does not take back an earlier one."""


@dataclass(frozen=True)
class _KeptFault:
    """A fault, its number in order of arrival (0 if an earlier run has handled it), and when it was taken."""

    number: int
    taken_s: float
    signal: Signal


class NodeFaults:
    """The faults of a job's nodes, over all attempts of one run of the supervisor. It does not decide anything."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], deque[_KeptFault]] = {}
        """Node, kind, port and urgency → the last two of their faults."""
        self._newest: dict[str, int] = {}
        """Node → number of its last kept fault."""
        self._weighed: dict[tuple[frozenset[str], frozenset[str]], FaultyNodes] = {}
        """Results of `faulty`, kept until something changes: it is called in each turn."""
        self._forgotten_at_s = -math.inf
        self._count = 0
        self._handled: dict[str, int] = {}
        """Node → number of the last fault that was acted on: the reasons of a node that stays in use come up again."""
        self._memory = FaultMemory()
        self._save: Callable[[FaultMemory], None] = lambda _: None
        self._storms: list[Signal] = []
        """Faults that were announced as storms, as in the memory."""
        self._handled_before_s: Mapping[str, float] = {}
        """`handled_at_s` of the memory when this run began: agents now send older faults again."""
        self._new: list[tuple[Signal, float]] = []
        self._new_unused: list[Signal] = []
        self._problems: list[tuple[str, str]] = []
        self._taken: dict[str, deque[tuple[int, float]]] = {}
        """Node → numbers and times of its last findings: a restarted agent sends some of them again."""
        self._unused: dict[str, Signal] = {}
        """Node without ranks → a lost GPU there: not a reason to move, but the node is not a replacement."""
        self._drains: set[tuple[str, int, str]] = set()
        """Node, time and reason of each drain that was taken."""
        self._resumed: list[str] = []
        """Nodes whose drain was undone, until the story has a line for it."""
        self._told_at_s: dict[tuple[object, ...], float] = {}
        self._stays_told_at_s: dict[str, float] = {}

    def remember(self, memory: FaultMemory, save: Callable[[FaultMemory], None]) -> None:
        """Take the memory of earlier runs; `save` is called with each later memory."""
        self._save, self._handled_before_s = save, memory.handled_at_s
        self._know(memory)

    def _know(self, memory: FaultMemory) -> None:
        self._memory, self._storms = memory, [fault.signal for fault in memory.storms]
        self._changed()

    def _learn(self, memory: FaultMemory) -> None:
        """Change the memory, and save it."""
        self._know(memory)
        self._save(memory)

    # -- taking -------------------------------------------------------------------------------------------------------

    def take(self, message: NodeFindings, now_s: float, *, over_rdma: bool = True) -> None:
        """Take findings that an agent has read; `over_rdma`: this job trains over RDMA (`policy.urgency_here`)."""
        if message.problem:
            self._problems.append((message.node, message.problem))
        if message.unused:
            for finding in message.findings:
                signal = _signal(message.node, finding, now_s)
                self._new_unused += [signal] if message.node not in self._unused else []
                self._unused[message.node] = signal
            self._changed()
            return
        for finding in message.findings:
            taken = self._taken.setdefault(message.node, deque(maxlen=2 * MAX_FINDINGS))
            if (finding.seq, finding.at_s) not in taken:
                taken.append((finding.seq, finding.at_s))
                self._new.append((_signal(message.node, _for_job(finding, over_rdma=over_rdma), now_s), now_s))

    def take_drains(
        self, nodes: Iterable[Node], in_use: Collection[str], whole: Collection[str], since_s: float, now_s: float
    ) -> None:
        """Take the drains of nodes in use since this time, and take back drains that are undone.

        Args:
            nodes: The nodes as Slurm shows them; a missing node has not changed.
            in_use: Names of the nodes that count.
            whole: Names of the nodes that the job has to itself.
            since_s: When this run of the job began, by slurmctld's clock.
            now_s: The time, by our clock.
        """
        for node in nodes:
            key = node.name, node.reason_at_s, node.reason
            if not drained(node):
                self._undone(node.name)
            elif node.name in in_use and node.reason_at_s >= int(since_s) and key not in self._drains:
                self._drains.add(key)
                self._new.append((_drain_signal(node, whole, now_s), now_s))

    def _undone(self, node: str) -> None:
        """Note that a node is not drained any more."""
        if not any(name == node for name, *_ in self._drains):
            return
        self._drains = {key for key in self._drains if key[0] != node}
        self._new = [(signal, taken_s) for signal, taken_s in self._new if not _drain_of(signal, node)]
        self._resumed.append(node)
        self._kept.pop((node, policy.DRAINED, "", AT_NEXT_CHECKPOINT), None)
        self._changed()

    def pass_on(self, signals: list[Signal], folder: IncidentFolder) -> None:
        """Add new reports to an attempt's signals, and to the story."""
        resumed, self._resumed = self._resumed, []
        for node in resumed:
            signals[:] = [signal for signal in signals if not _drain_of(signal, node)]
            folder.log_event("note", f"node {node} is no longer drained", node=node)
        problems, self._problems = self._problems, []
        for node, text in problems:
            folder.log_event("note", f"the findings of {node} are not believed: {text}", node=node)
        new_unused, self._new_unused = self._new_unused, []
        for signal in new_unused:
            text = f"{policy.fault_text(signal)}; no rank has run there, and it replaces no node"
            folder.log_event("note", text, node=signal.node)
        new, self._new = self._new, []
        for signal, taken_s in new:
            signals.append(signal)
            self._keep(signal, taken_s)
            self._tell(signal, folder)
        del signals[:-_MOST]
        if new:
            self._changed()

    def _keep(self, signal: Signal, taken_s: float) -> None:
        evidence = signal.evidence
        if policy.belongs(signal, self._storms):
            return
        if evidence["urgency"] == NOTE:
            if evidence["kind"] not in _NO_RECOVERY:
                # A check that passes again takes back its faults that could wait.
                self._kept.pop((signal.node, evidence["kind"], evidence["port"], AT_NEXT_CHECKPOINT), None)
        else:
            old = signal.at_s <= self._handled_before_s.get(signal.node, -math.inf)
            self._count += not old
            number = 0 if old else self._count
            key = signal.node, evidence["kind"], evidence["port"], evidence["urgency"]
            self._kept.setdefault(key, deque(maxlen=2)).append(_KeptFault(number, taken_s, signal))

    def forget(self, now_s: float) -> None:
        """Drop faults that can have no consequence any more: they only count if they come again, and have not.

        The age of a fault is measured from when it was taken: the clock of its node may be wrong.
        """
        if now_s - self._forgotten_at_s < _FORGET_EVERY_S:
            return
        self._forgotten_at_s, since_s = now_s, now_s - policy.REPEAT_WITHIN_S - policy.AT_ONCE_S
        old = [
            key
            for key, last in self._kept.items()
            if key[-1] == IF_REPEATED and last[-1].taken_s < since_s and not policy.repeated([x.signal for x in last])
        ]
        for key in old:
            del self._kept[key]
        if old:
            self._changed()

    def _changed(self) -> None:
        """Drop kept results after a change."""
        self._weighed.clear()
        self._newest.clear()
        for (node, *_), last in self._kept.items():
            self._newest[str(node)] = max(self._newest.get(str(node), 0), *(item.number for item in last))

    def _tell(self, signal: Signal, folder: IncidentFolder) -> None:
        evidence = signal.evidence
        key = signal.node, signal.source, *(evidence.get(name) for name in ("kind", "gpus", "port", "code"))
        if signal.at_s - self._told_at_s.get(key, 0.0) < _TOLD_AGAIN_S:
            return
        self._told_at_s[key] = signal.at_s
        text = f"{policy.fault_text(signal)} ({_MEANING[str(evidence['urgency'])]})"
        data = {"fault" if name == "kind" else name: value for name, value in evidence.items()}
        folder.log_event("node-fault", text, node=signal.node, source=signal.source, **data)

    # -- weighing -----------------------------------------------------------------------------------------------------

    def faulty(self, nodes: Collection[str], used: Collection[str]) -> FaultyNodes:
        """Return which of these nodes are to be left; `used` are the nodes that train."""
        key = frozenset(nodes), frozenset(used)
        if key not in self._weighed:
            self._weighed[key] = self._weigh(*key)
        return self._weighed[key]

    def _weigh(self, nodes: Collection[str], used: Collection[str]) -> FaultyNodes:
        found = policy.weigh(self.of(nodes), nodes, used, self._memory.moves) if self._kept else FaultyNodes()
        spares = {node: fault for node, fault in self._unused.items() if node in nodes and node not in used}
        if not spares:
            return found
        reasons = {node: policy.fault_text(fault) for node, fault in spares.items()}
        return replace(found, leave_now={**reasons, **found.leave_now}, faults={**spares, **found.faults})

    def of(self, nodes: Collection[str]) -> tuple[Signal, ...]:
        """Return what these nodes reported, in order of time: without notes, and only the last two of each kind."""
        kept = (item.signal for last in self._kept.values() for item in last if item.signal.node in nodes)
        return tuple(sorted(kept, key=lambda signal: signal.at_s))

    def moves(
        self, evict: Collection[str], nodes: Collection[str], used: Collection[str], now_s: float
    ) -> tuple[FaultMove, ...]:
        """Return what to remember if the job leaves `evict` now; the other arguments are those of `faulty`."""
        found = self.faulty(nodes, used).faults
        return tuple(FaultMove.of(found[node], now_s) for node in sorted(evict) if node in found)

    def unhandled(self, node: str) -> bool:
        """Return whether this node has reported anything since it was last handled."""
        return self._newest.get(node, 0) > self._handled.get(node, 0)

    def moved(self, moves: Iterable[FaultMove]) -> None:
        """Note that nodes are left."""
        self._learn(self._memory.moved(moves))

    def handled(self, nodes: Collection[str]) -> None:
        """Note that all reports of these nodes so far are acted on, or cannot be acted on."""
        self._handled.update(dict.fromkeys(nodes, self._count))
        self._learn(self._memory.handled({s.node: s.at_s for s in self.of(nodes)}))

    def staying(self, nodes: Collection[str], used: Collection[str], now_s: float) -> dict[str, str]:
        """Return nodes that are no longer left for their mild faults, with the reasons; each once a day."""
        stays = self.faulty(nodes, used).stays
        told = self._stays_told_at_s
        # An earlier run has already announced these nodes.
        told.update({n: now_s for n in stays if n not in told and not self.unhandled(n)})
        new = {n: why for n, why in stays.items() if now_s - told.get(n, -math.inf) > policy.MILD_WITHIN_S}
        told.update(dict.fromkeys(new, now_s))
        return new

    def is_news(self, storm: Sequence[Signal]) -> bool:
        """Return whether any of these faults, on too many nodes at once, belongs to no announced event."""
        return any(not policy.belongs(signal, self._storms) for signal in storm)

    def announced(self, storm: Sequence[Signal]) -> None:
        """Note that this event is announced: its faults do not count against single nodes, even later."""
        told = {id(signal) for signal in storm}
        for key, last in list(self._kept.items()):
            self._kept[key] = deque((item for item in last if id(item.signal) not in told), maxlen=2)
        self._kept = {key: last for key, last in self._kept.items() if last}
        self._learn(self._memory.announced(storm))


_MEANING = {
    NOW: "urgent",
    IF_REPEATED: f"it counts if it comes again within {policy.REPEAT_WITHIN_S / 60:.0f} min",
    AT_NEXT_CHECKPOINT: "it can wait for the next checkpoint",
    NOTE: "nothing is done about it",
}


def _drain_signal(node: Node, whole: Collection[str], now_s: float) -> Signal:
    who = f" by {node.reason_user}" if node.reason_user else ""
    detail = f"that it was drained{who}: {shortened(node.reason, _MAX_REASON)}"
    urgency = urgency_of_drain(node, whole)
    evidence = {"kind": policy.DRAINED, "urgency": urgency, "gpus": (), "port": "", "code": None}
    at_s = min(float(node.reason_at_s), now_s)
    return Signal(SignalKind.NODE_FAULT, at_s, "slurm", detail, node.name, evidence=evidence)


def _drain_of(signal: Signal, node: str) -> bool:
    return signal.node == node and signal.evidence.get("kind") == policy.DRAINED


def _for_job(finding: NodeFinding, *, over_rdma: bool) -> NodeFinding:
    urgency = policy.urgency_here(finding.kind, finding.urgency, over_rdma=over_rdma)
    if urgency == finding.urgency:
        return finding
    return finding._replace(urgency=urgency, text=f"{finding.text}; {_NOT_OVER_RDMA}")


def _signal(node: str, finding: NodeFinding, now_s: float) -> Signal:
    evidence = {name: getattr(finding, name) for name in ("kind", "urgency", "gpus", "port", "code")}
    # A node's clock may be ahead of ours, or be wrong by years; a time before the epoch is not valid.
    at_s = now_s - min(max(0.0, now_s - finding.at_s), _OLDEST_S) if finding.at_s >= 0 else now_s
    return Signal(SignalKind.NODE_FAULT, at_s, finding.source, finding.text, node, evidence=evidence)
