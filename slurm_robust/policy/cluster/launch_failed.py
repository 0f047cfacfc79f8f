"""Finds jobs that Slurm holds because a node refused to start them, and that may be released. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.core.model import job_tag
from slurm_robust.policy.cluster.node_states import drained_by_us
from slurm_robust.slurm.client import Job, Node

BEFORE_S, AFTER_S = 120.0, 10.0
"""A drain is the cause of a job's requeue if it is at most this long before or after it; in Slurm's seconds."""


def launch_failed(job: Job) -> bool:
    """Return whether Slurm, and not a person, holds the job, because it could not be started."""
    reason = job.reason.lower().replace("_", " ")
    return job.state == "PENDING" and not job.priority and reason.startswith("launch failed")


def refused_by(job: Job, nodes: Mapping[str, Node]) -> Node | None:
    """Return the node whose check in our prolog is the reason for the hold; None if that is not certain.

    The reason of the node's drain names the job, and was written when the job was requeued. Slurm holds a job with the
    same text if the job failed to start too often, for any cause: such a hold is left to a person.
    """
    if not launch_failed(job) or job.hetjob_id or job.ref.het_offset is not None:
        return None
    for node in nodes.values():
        fits = -BEFORE_S <= node.reason_at_s - job.submit_at_s <= AFTER_S
        if fits and drained_by_us(node) and node.reason.endswith(job_tag(job.ref.job_id)):
            return node
    return None
