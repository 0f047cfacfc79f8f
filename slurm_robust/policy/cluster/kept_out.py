"""Finds waiting jobs that can never start beside the standby pools. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slurm_robust.policy.cluster.node_picture import NodePicture
from slurm_robust.slurm.client import Job


def kept_out(jobs: Iterable[Job], picture: NodePicture, pooled: frozenset[str]) -> list[dict[str, Any]]:
    """Return a row of each job that waits for more nodes than its partitions have beside the pools, and fits with them.

    Leave out jobs that have a reservation (their nodes are others), that are held, or that wait for limits of their
    user.
    """
    if not pooled:
        return []
    found = []
    for job in jobs:
        word = job.reason.lower()
        for_nodes = word in ("resources", "reservation") or ("node" in word and "limit" not in word)
        if job.state != "PENDING" or not for_nodes or job.reservation:
            continue
        beside = {p: _beside(job, picture.partitions.get(p, frozenset()), picture, pooled) for p in _named(job)}
        if beside and all(free is not None for free in beside.values()):
            partition = max(beside, key=lambda p: beside[p] or 0)
            row = {"job": job.ref.address, "user": job.user, "partition": partition}
            found.append({**row, "needs": job.num_nodes, "beside": beside[partition]})
    return found


def _named(job: Job) -> list[str]:
    return [p for p in job.partition.split(",") if p]


def _beside(job: Job, names: frozenset[str], picture: NodePicture, pooled: frozenset[str]) -> int | None:
    """Return how many nodes of a partition are beside the pools; None if the pools do not keep the job out."""
    for there in (names - picture.drained.keys(), names):  # the latter: also once all are repaired
        if len(there - pooled) < job.num_nodes <= len(there):
            return len(there - pooled)
    return None
