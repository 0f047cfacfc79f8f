"""What nodes report of themselves: findings of their root service, and drains. Policy weighs what follows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from slurm_robust.model import Signal, SignalKind
from slurm_robust.node_findings import AT_NEXT_CHECKPOINT, IF_REPEATED, MAX_FINDINGS, NOTE, NOW, NodeFinding
from slurm_robust.policy.job import node_faults as policy
from slurm_robust.policy.job.node_faults import FaultMove, FaultyNodes
from slurm_robust.slurm.client import Node
from slurm_robust.supervise.agent.messages import NodeFindings
from slurm_robust.supervise.incident.incident_folder import IncidentFolder
from slurm_robust.text import shortened

_MOST = 1024
"""Signals of an attempt: a flood must not fill the memory."""
_TOLD_AGAIN_S = 300.0
"""The story has a line for each fault; the same one again within this time gets none."""
_NOT_OVER_RDMA = "its job was not seen to train over RDMA between nodes"
_OLDEST_S = 30 * 86_400.0
_MAX_REASON = 160
_NO_RECOVERY = ("xid", "sxid")
"""Kinds of which one finding says nothing about an earlier one."""


class NodeFaults:
    """The faults of a job's nodes, over all attempts of one run of the supervisor; it decides nothing."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], deque[tuple[int, Signal]]] = {}
        """Node, kind and port → the last two of their faults, numbered as they came."""
        self._count = 0
        self._handled: dict[str, int] = {}
        """Node → number of the last fault that was acted on: the reasons of a node that stays in use come up again."""
        self._storm_at_s = -math.inf
        self._storm: deque[Signal] = deque(maxlen=_MOST)
        """What was announced: more of it may come late."""
        self._new: list[Signal] = []
        self._new_unused: list[Signal] = []
        self._problems: list[tuple[str, str]] = []
        self._taken: dict[str, deque[tuple[int, float]]] = {}
        """Node → numbers and times of its last findings: an agent that is started anew sends some again."""
        self._unused: dict[str, Signal] = {}
        """Nodes without ranks → a lost GPU there: no reason to move, and no replacement."""
        self._drains: set[tuple[str, int, str]] = set()
        self._told_at_s: dict[tuple[object, ...], float] = {}
        self._moves: tuple[FaultMove, ...] = ()
        self._stays_told_at_s: dict[str, float] = {}

    def remember(self, moves: Iterable[FaultMove]) -> None:
        """Take the nodes that the job has left for faults, also in earlier runs."""
        self._moves = tuple(moves)

    # -- taking -------------------------------------------------------------------------------------------------------

    def take(self, message: NodeFindings, now_s: float, *, over_rdma: bool = True) -> None:
        """Take what an agent has read; `over_rdma`: this job trains so (`policy.urgency_here`)."""
        if message.problem:
            self._problems.append((message.node, message.problem))
        if message.unused:
            for finding in message.findings:
                signal = _signal(message.node, finding, now_s)
                self._new_unused += [signal] if message.node not in self._unused else []
                self._unused[message.node] = signal
            return
        for finding in message.findings:
            taken = self._taken.setdefault(message.node, deque(maxlen=2 * MAX_FINDINGS))
            if (finding.seq, finding.at_s) not in taken:
                taken.append((finding.seq, finding.at_s))
                self._new.append(_signal(message.node, _for_job(finding, over_rdma=over_rdma), now_s))

    def take_drains(self, nodes: Iterable[Node], in_use: Collection[str], since_s: float, now_s: float) -> None:
        """Take the drains of nodes in use that are not older than this."""
        for node in nodes:
            drained = "DRAIN" in node.flags or "FAIL" in node.flags
            key = node.name, node.reason_at_s, node.reason
            if not drained or node.name not in in_use or node.reason_at_s < int(since_s) or key in self._drains:
                continue
            self._drains.add(key)
            who = f" by {node.reason_user}" if node.reason_user else ""
            detail = f"that it was drained{who}: {shortened(node.reason, _MAX_REASON)}"
            evidence = {"kind": policy.DRAINED, "urgency": policy.urgency_of_drain(node.reason), "gpus": (), "port": ""}
            at_s = min(float(node.reason_at_s), now_s)
            signal = Signal(
                SignalKind.NODE_FAULT, at_s, "slurm", detail, node.name, evidence={**evidence, "code": None}
            )
            self._new.append(signal)

    def pass_on(self, signals: list[Signal], folder: IncidentFolder) -> None:
        """Add what is new to an attempt's signals, and to the story."""
        problems, self._problems = self._problems, []
        for node, text in problems:
            folder.log_event("note", f"the findings of {node} are not believed: {text}", node=node)
        new_unused, self._new_unused = self._new_unused, []
        for signal in new_unused:
            text = f"{policy.fault_text(signal)}; no rank has run there, and it replaces no node"
            folder.log_event("note", text, node=signal.node)
        new, self._new = self._new, []
        for signal in new:
            signals.append(signal)
            self._keep(signal)
            self._tell(signal, folder)
        del signals[:-_MOST]

    def _keep(self, signal: Signal) -> None:
        evidence = signal.evidence
        if policy.belongs(signal, self._storm):
            return
        if evidence["urgency"] == NOTE:
            if evidence["kind"] not in _NO_RECOVERY:
                # A check that is well again takes back what could wait.
                self._kept.pop((signal.node, evidence["kind"], evidence["port"], AT_NEXT_CHECKPOINT), None)
        else:
            self._count += 1
            key = signal.node, evidence["kind"], evidence["port"], evidence["urgency"]
            self._kept.setdefault(key, deque(maxlen=2)).append((self._count, signal))

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
        """Which of these nodes are to be left; `used` are those that train."""
        found = policy.weigh(self.of(nodes), nodes, used, self._moves) if self._kept else FaultyNodes()
        spares = {node: fault for node, fault in self._unused.items() if node in nodes and node not in used}
        if not spares:
            return found
        reasons = {node: policy.fault_text(fault) for node, fault in spares.items()}
        return replace(found, leave_now={**reasons, **found.leave_now}, faults={**spares, **found.faults})

    def of(self, nodes: Collection[str]) -> tuple[Signal, ...]:
        """What these nodes reported, in order of time; notes are left out, and of each kind the last two are kept."""
        kept = (signal for last in self._kept.values() for _, signal in last if signal.node in nodes)
        return tuple(sorted(kept, key=lambda signal: signal.at_s))

    def moves(
        self, evict: Collection[str], nodes: Collection[str], used: Collection[str], now_s: float
    ) -> tuple[FaultMove, ...]:
        """What is to be remembered where the job leaves `evict` now; arguments else as for `faulty`."""
        found = self.faulty(nodes, used).faults
        return tuple(FaultMove.of(found[node], now_s) for node in sorted(evict) if node in found)

    def unhandled(self, node: str) -> bool:
        """Whether this node has reported something since it was last handled."""
        last = max((last[-1][0] for key, last in self._kept.items() if key[0] == node), default=0)
        return last > self._handled.get(node, 0)

    def handled(self, nodes: Iterable[str]) -> None:
        """Note that what these nodes have reported so far is acted on, or cannot be."""
        self._handled.update(dict.fromkeys(nodes, self._count))

    def staying(self, nodes: Collection[str], used: Collection[str], now_s: float) -> dict[str, str]:
        """Nodes that are not left for their mild faults any more, with the reasons; each once a day."""
        stays = self.faulty(nodes, used).stays
        told = self._stays_told_at_s
        new = {n: why for n, why in stays.items() if now_s - told.get(n, -math.inf) > policy.MILD_WITHIN_S}
        told.update(dict.fromkeys(new, now_s))
        return new

    def is_news(self, storm: Sequence[Signal]) -> bool:
        """Whether these faults, on too many nodes at once, are another event than the one that was announced last."""
        return any(signal.at_s > self._storm_at_s + policy.AT_ONCE_S for signal in storm)

    def announced(self, storm: Iterable[Signal]) -> None:
        """Note that this event is announced: what it had in common is no single node's fault, also not later."""
        storm = list(storm)
        self._storm.extend(storm)
        for last in self._kept.values():
            for item in [item for item in last if any(item[1] is signal for signal in storm)]:
                last.remove(item)
        self._kept = {key: last for key, last in self._kept.items() if last}
        self._storm_at_s = max([self._storm_at_s, *(signal.at_s for signal in storm)])


_MEANING = {
    NOW: "urgent",
    IF_REPEATED: f"it counts if it comes again within {policy.REPEAT_WITHIN_S / 60:.0f} min",
    AT_NEXT_CHECKPOINT: "it can wait for the next checkpoint",
    NOTE: "nothing is done about it",
}


def _for_job(finding: NodeFinding, *, over_rdma: bool) -> NodeFinding:
    urgency = policy.urgency_here(finding.kind, finding.urgency, over_rdma=over_rdma)
    if urgency == finding.urgency:
        return finding
    return finding._replace(urgency=urgency, text=f"{finding.text}; {_NOT_OVER_RDMA}")


def _signal(node: str, finding: NodeFinding, now_s: float) -> Signal:
    evidence = {name: getattr(finding, name) for name in ("kind", "urgency", "gpus", "port", "code")}
    # A node's clock may be ahead of ours, or be wrong by years.
    at_s = now_s - min(max(0.0, now_s - finding.at_s), _OLDEST_S)
    return Signal(SignalKind.NODE_FAULT, at_s, finding.source, finding.text, node, evidence=evidence)
