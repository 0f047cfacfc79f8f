"""Combines several faults into one finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from slurm_robust.nodecheck.engine.finding import Finding, Status

_ORDER = (Status.FAIL, Status.UNKNOWN, Status.WARN)
_MAX_NAMED = 4


class Fault(NamedTuple):
    """One fault; the fields are those of a `Finding`, and `gpu` is the record of the one GPU that has it."""

    status: Status
    reason: str
    sentence: str
    remedy: str
    gpu: Mapping[str, Any] | None = None

    @classmethod
    def warn(cls, reason: str, sentence: str, remedy: str, gpu: Mapping[str, Any] | None = None) -> Fault:
        """Return a fault that only warns."""
        return cls(Status.WARN, reason, sentence, remedy, gpu)

    @classmethod
    def fail(cls, reason: str, sentence: str, remedy: str, gpu: Mapping[str, Any] | None = None) -> Fault:
        """Return a fault that makes the node unfit."""
        return cls(Status.FAIL, reason, sentence, remedy, gpu)

    @classmethod
    def unknown(cls, reason: str, sentence: str, remedy: str) -> Fault:
        """Something that could not be checked."""
        return cls(Status.UNKNOWN, reason, sentence, remedy)


Faults = Iterator[Fault]


def conclude(faults: Iterable[Fault], healthy: Finding, evidence: Mapping[str, Any]) -> Finding:
    """Return the worst fault, with the sentences of all faults of its status, each once; `healthy` without faults."""
    found = list(faults)
    if not found:
        return healthy
    status = min((fault.status for fault in found), key=_ORDER.index)
    worst = [fault for fault in found if fault.status is status]
    sentence = "; ".join(dict.fromkeys(fault.sentence for fault in worst))
    return Finding(status, worst[0].reason, sentence, worst[0].remedy, evidence)


def some(names: Iterable[str]) -> str:
    """Return names as `a, b, c, d and 3 more`."""
    every = list(names)
    more = len(every) - _MAX_NAMED
    return ", ".join(every) if more <= 0 else f"{', '.join(every[:_MAX_NAMED])} and {more} more"
