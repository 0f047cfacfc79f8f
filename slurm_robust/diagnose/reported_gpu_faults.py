"""Blames the node for a CUDA error if the node reported a fault of its GPU in the same minute."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from slurm_robust.core.model import Signal, SignalKind
from slurm_robust.core.text import shortened
from slurm_robust.diagnose.findings import matcher
from slurm_robust.diagnose.root import Diagnosis
from slurm_robust.diagnose.taxonomy import Blame
from slurm_robust.marks.node_findings import NOTE, NOW

WITHIN_S = 60.0
_CUDA_ERROR = "cuda_error"
_XID = re.compile(r"\bxid\b(?:\s*\([^()]*\))?[\s:#=-]{0,3}(\d{1,3})\b", re.IGNORECASE)


def with_node_fault(diagnosis: Diagnosis, node: str, at_s: float, signals: Iterable[Signal]) -> tuple[Diagnosis, str]:
    """Return the diagnosis with blame for the node if its GPU reported a fault, too, and why; empty if unchanged.

    The category is not changed, since the line itself tells no more. XIDs that a wrong program may also cause (13, 31,
    43, …) do not change anything.

    Args:
        diagnosis: The diagnosis by the log alone.
        node: The node of the rank that printed the root; empty if not known: then nothing is changed.
        at_s: When the root was printed, in seconds since the epoch.
        signals: The reports of nodes.
    """
    if diagnosis.category.name != _CUDA_ERROR or diagnosis.blame is Blame.NODE or not node:
        return diagnosis, ""
    first = fault_beside(node, at_s, signals)
    if first is None:
        return diagnosis, ""
    apart_s = round(abs(first.at_s - at_s))
    when = f"{apart_s} s {'before' if first.at_s <= at_s else 'after'} the error" if apart_s else "at the same moment"
    why = f"node {node} reported {shortened(first.detail, 120)!r} {when}"
    return replace(diagnosis, blame=Blame.NODE), why


def fault_beside(node: str, at_s: float, signals: Iterable[Signal]) -> Signal | None:
    """Return the XID that this node reported nearest to this time, within a minute; None if none tells anything."""
    near = [s for s in signals if s.node == node and abs(s.at_s - at_s) <= WITHIN_S and _of_machine(s)]
    return min(near, key=lambda s: abs(s.at_s - at_s), default=None)


def blames_node(signal: Signal) -> bool:
    """Return whether this is a node's fault that may explain a failure, and not just a note."""
    return signal.kind is SignalKind.NODE_FAULT and signal.evidence.get("urgency") != NOTE


def _of_machine(signal: Signal) -> bool:
    """Return whether a node's fault names an XID that no program causes by itself, or the loss of a GPU."""
    if not blames_node(signal):
        return False
    if urgency := signal.evidence.get("urgency"):
        # The node's own catalogue has judged it.
        return signal.evidence.get("code") is not None or bool(urgency == NOW and signal.evidence.get("gpus"))
    named = _XID.search(signal.detail)
    if named is None:
        return False
    rule = matcher().match(f"NVRM: Xid (PCI:0000:00:00): {named[1]}, ")
    return rule is None or rule.blame is not Blame.EITHER
