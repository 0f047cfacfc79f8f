"""What a job does about faults that its nodes report: leave now, after the next checkpoint, or not at all. Pure.

| urgency | what is done |
|---|---|
| `now` | the node is left at once |
| `if_repeated` | it is left at once where the same kind came twice on one node and port within `REPEAT_WITHIN_S` |
| `at_next_checkpoint` | it is left right after the job's next verified checkpoint, or at `supervise.fault_wait_s` |
| `note` | nothing; the story has a line |

Faults on too many nodes at once (a storm, `_stormy`) share a cause outside the nodes: none of these nodes is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_robust.model import REASON_PREFIX, Signal, SignalKind
from slurm_robust.policy.job.decide import max_evictions

REPEAT_WITHIN_S = 300.0
ONE_EVENT_S = 10.0
"""Findings that are closer are one event: both ports of a card, or one that is told again."""
AT_ONCE_S = 60.0
"""Faults on several nodes that are no further apart are one event: sources are polled up to 30 s apart."""
NOW, IF_REPEATED, AT_NEXT_CHECKPOINT, NOTE = "now", "if_repeated", "at_next_checkpoint", "note"


@dataclass(frozen=True)
class FaultyNodes:
    """Which nodes a job should leave, each with the reason, and when.

    Attributes:
        leave_now: At once.
        leave_later: After the next verified checkpoint; none that is also left at once.
        storm: Faults on so many nodes at once that no node is left because of them, oldest first.
    """

    leave_now: Mapping[str, str] = field(default_factory=dict)
    leave_later: Mapping[str, str] = field(default_factory=dict)
    storm: tuple[Signal, ...] = ()

    @property
    def all(self) -> dict[str, str]:
        """All nodes to leave, with the reasons."""
        return {**self.leave_later, **self.leave_now}


def weigh(signals: Iterable[Signal], nodes: Collection[str], used: Collection[str]) -> FaultyNodes:
    """Which of a job's nodes are to be left.

    Args:
        signals: All that was observed; only faults of nodes with an urgency above `note` count.
        nodes: Those of the job; faults of other nodes do not count.
        used: Those of them that train; a storm is measured by these.
    """
    faults = sorted((s for s in signals if s.node in nodes and _acts(s)), key=lambda s: s.at_s)
    storm = _stormy([s for s in faults if s.node in used], max_evictions(len(used)))
    single = [s for s in faults if s not in storm]
    leave_now: dict[str, str] = {}
    for at, fault in enumerate(single):
        earlier = _same_before(fault, single[:at])
        if _urgency(fault) == NOW:
            leave_now.setdefault(fault.node, fault_text(fault))
        elif _urgency(fault) == IF_REPEATED and earlier is not None:
            apart_s = fault.at_s - earlier.at_s
            leave_now.setdefault(fault.node, f"{fault_text(fault)}, for the second time in {apart_s:.0f} s")
    later = [s for s in single if _urgency(s) == AT_NEXT_CHECKPOINT and s.node not in leave_now]
    return FaultyNodes(leave_now, {s.node: fault_text(s) for s in reversed(later)}, tuple(storm))


def fault_text(fault: Signal) -> str:
    """The reason that names node and fault."""
    return f"node {fault.node} reports {fault.detail}"


def urgency_of_drain(reason: str) -> str:
    """The urgency of a drain of a running job's node: a person who drains wants the job to finish."""
    return AT_NEXT_CHECKPOINT if reason.startswith(REASON_PREFIX) else NOTE


def _urgency(fault: Signal) -> str:
    return str(fault.evidence.get("urgency", NOTE))


def _acts(signal: Signal) -> bool:
    return signal.kind is SignalKind.NODE_FAULT and _urgency(signal) in (NOW, IF_REPEATED, AT_NEXT_CHECKPOINT)


def _same_before(fault: Signal, earlier: Sequence[Signal]) -> Signal | None:
    """The last fault of this kind on this node and port, if it is not too long ago."""
    same = [s for s in earlier if _key(s) == _key(fault) and ONE_EVENT_S <= fault.at_s - s.at_s <= REPEAT_WITHIN_S]
    return same[-1] if same else None


def _key(fault: Signal) -> tuple[object, ...]:
    return fault.node, fault.evidence.get("kind"), fault.evidence.get("port")


def _sort(fault: Signal) -> tuple[object, ...]:
    """XIDs are of one kind, but a lost GPU and a row remap have nothing to do with each other."""
    return fault.evidence.get("kind"), fault.evidence.get("code"), _urgency(fault)


def belongs(fault: Signal, storm: Iterable[Signal]) -> bool:
    """Whether a fault is one more of an event that many nodes have reported: it came late."""
    return any(_together(fault, other) for other in storm)


def _together(one: Signal, other: Signal) -> bool:
    """They came at the same time, and are of one sort, or both urgent."""
    alike = _sort(one) == _sort(other) or _urgency(one) == _urgency(other) == NOW
    return alike and abs(one.at_s - other.at_s) <= AT_ONCE_S


def _stormy(faults: Sequence[Signal], bound: int) -> list[Signal]:
    """The faults that came with others of their kind, or with others as urgent, on more than `bound` nodes at once."""
    stormy = []
    for fault in faults:
        near = [s for s in faults if abs(s.at_s - fault.at_s) <= AT_ONCE_S]
        alike = {s.node for s in near if _sort(s) == _sort(fault)}
        urgent = {s.node for s in near if _urgency(s) == NOW} if _urgency(fault) == NOW else set()
        if len(alike) > bound or len(urgent) > bound:
            stormy.append(fault)
    return stormy
