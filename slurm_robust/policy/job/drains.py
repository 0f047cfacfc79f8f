"""Decides what a job does about drains of its nodes. Pure.

| who drained the node | the job | urgency |
|---|---|---|
| this project | has the whole node: what is wrong there concerns it | `at_next_checkpoint` |
| this project | shares the node, or may share it: another job's GPU may be the reason | `note` |
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
"""Matches the reason of a drain of ours if the node was drained for a GPU."""


def drained(node: Node) -> bool:
    """Return whether the node is closed to new jobs; a node that is only down is not drained."""
    return "DRAIN" in node.flags or "FAIL" in node.flags


def drained_by_us(node: Node) -> bool:
    """Return whether this project drained the node."""
    return drained(node) and node.reason.startswith(REASON_PREFIX)


def urgency_of_drain(node: Node, whole: Collection[str]) -> str:
    """Return the urgency of this drain for a job that has the nodes in `whole` to itself."""
    return AT_NEXT_CHECKPOINT if drained_by_us(node) and node.name in whole else NOTE


def whole_nodes(nodes: Iterable[Node], gpus: Mapping[str, Collection[int]], cpus: Mapping[str, int]) -> frozenset[str]:
    """Return the nodes that a job has to itself, as far as that is known.

    A job has a node to itself if it has all GPUs there, or all CPUs if there are no GPUs. If Slurm gives out no GPUs
    and we drained the node for a GPU, the job is not known to use that GPU: its agents report the faults of its ranks.

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
