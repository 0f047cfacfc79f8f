"""Decides what a job does about drains of its nodes. Pure.

| who drained the node | the job | urgency |
|---|---|---|
| we | has the whole node: what is wrong there concerns it | `at_next_checkpoint` |
| we | shares the node, or that is not known: another job's GPU may be the reason | `note` |
| a person | wants the job to finish | `note` |

The agents report the faults that concern a job on a shared node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from slurm_robust.core.model import REASON_PREFIX
from slurm_robust.marks.node_findings import AT_NEXT_CHECKPOINT, NOTE
from slurm_robust.slurm.client import Node

_GPUS = re.compile(r"(?:^|,)gpu(?::[^(),]*)?:(\d{1,9})(?=\(|,|$)")
"""In `gpu:a100:4(S:0-1),nic:1`: the number of GPUs of each type."""
_ABOUT_GPUS = re.compile(r"\b(?:XID|SXID|NVSwitch|NVLink|GPUs?)\b|\bgpu_", re.IGNORECASE)
"""In the reason of a drain of ours: it was drained for a GPU."""


def drained(node: Node) -> bool:
    """Whether somebody wants no new job on it; a node that is down is no drain."""
    return "DRAIN" in node.flags or "FAIL" in node.flags


def drained_by_us(node: Node) -> bool:
    """Whether that was we."""
    return drained(node) and node.reason.startswith(REASON_PREFIX)


def urgency_of_drain(node: Node, whole: Collection[str]) -> str:
    """The urgency of this drain for a job that has the `whole` nodes to itself."""
    return AT_NEXT_CHECKPOINT if drained_by_us(node) and node.name in whole else NOTE


def whole_nodes(nodes: Iterable[Node], gpus: Mapping[str, Collection[int]], cpus: Mapping[str, int]) -> frozenset[str]:
    """The nodes that a job has to itself, as far as that is known.

    All GPUs there are its own, or all CPUs where there are no GPUs. Where Slurm gives out no GPUs and we drained
    the node for one, the job is not known to use it: its agents tell of the faults that concern its ranks.

    Args:
        nodes: Any nodes, with the reasons of their drains.
        gpus: Node → the job's GPUs there.
        cpus: Node → how many CPUs the job has there.
    """
    return frozenset(n.name for n in nodes if _whole(n, len(gpus.get(n.name, ())), cpus.get(n.name, 0)))


def _whole(node: Node, gpus: int, cpus: int) -> bool:
    all_gpus = sum(map(int, _GPUS.findall(node.gres)))
    if all_gpus or "gpu" in node.gres:
        return 0 < all_gpus <= gpus
    return 0 < node.cpus <= cpus and not (drained_by_us(node) and _ABOUT_GPUS.search(node.reason))
