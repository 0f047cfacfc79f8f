"""Rows of facts with few words, for tests."""

from __future__ import annotations

from slurm_robust.core.training_time import TrainingAttempt
from slurm_robust.daemon.store.attempt_ledger import SupervisedAttempt
from slurm_robust.report.facts import ClosedIncident, Facts, NodeDrain, RanJob

DAY_S, HOUR_S = 86400.0, 3600.0
NOW_S = 30 * DAY_S


def facts_of(**rows: object) -> Facts:
    """Thirty days from the epoch on."""
    return Facts(0.0, NOW_S, NOW_S, "c", **rows)  # type: ignore[arg-type]


def attempt_row(start_s: float, end_s: float | None, **changes: object) -> SupervisedAttempt:
    """A training that steps from its start to its end; fields of both rows may be changed."""
    times: dict[str, object] = {"lineage": "l", "job": "7", "restart": 0, "nodes": 4, "gpus": 32}
    times |= {"eligible_at_s": start_s, "start_at_s": start_s, "first_step_at_s": start_s}
    times |= {"first_new_step_at_s": start_s, "last_step_at_s": end_s or NOW_S, "end_at_s": end_s}
    times |= {"seen_at_s": end_s or NOW_S, "last_step": 10}
    own = {k: v for k, v in changes.items() if k in ("user", "cluster", "job_id", "nodes_named", "state", "partition")}
    times |= {k: v for k, v in changes.items() if k not in own}
    names = own.pop("nodes_named", ())
    values: dict[str, object] = {"cluster": "c", "job_id": 7, "user": "ada", "name": "train", "partition": "p"}
    return SupervisedAttempt(**(values | own), nodes=names, times=TrainingAttempt(**times))  # type: ignore[arg-type]


def incident_row(at_s: float, number: int = 0, **changes: object) -> ClosedIncident:
    """A claim that was answered by a seat, and is back after a hundred seconds."""
    times = {"fault": at_s, "suspected": at_s + 10, "decided": at_s + 15, "stopped": at_s + 16}
    times |= {"running": at_s + 20, "first_step": at_s + 100, "first_new_step": at_s + 100}
    values: dict[str, object] = {
        "key": f"k{at_s}-{number}",
        "id": f"i{number}",
        "lineage": "l",
        "cluster": "c",
        "job": "7",
        "job_id": 7,
        "user": "ada",
        "attempt": "c.7.r0.0",
        "restart": 0,
        "kind": "claim",
        "mode": "act",
        "state": "closed",
        "outcome": "resumed",
        "reason": "",
        "opened_at_s": at_s + 10,
        "closed_at_s": at_s + 100,
        "times": times,
        "conclusion": "culprit",
        "road": "seat",
        "evict": ("n1",),
        "standby": ("n9",),
        "suspects": ("n1",),
        "category": "gpu_lost",
        "blame": "node",
        "nodes": 4,
        "gpus": 32,
    }
    return ClosedIncident(**(values | changes))  # type: ignore[arg-type]


def drain_row(node: str, at_s: float, reason: str = "srobust: XID 79", ended_at_s: float | None = None) -> NodeDrain:
    """A drain of ours."""
    return NodeDrain(node, at_s, reason, ended_at_s)


def job_row(start_s: float | None, end_s: float | None, nodes: tuple[str, ...] = ("n1",), **changes: object) -> RanJob:
    """A job of eight GPUs a node, which waited a minute."""
    at_s = (start_s if start_s is not None else 0.0) - 60
    values: dict[str, object] = {
        "cluster": "c",
        "job": "5",
        "job_id": 5,
        "restart": 0,
        "user": "bob",
        "account": "a",
        "name": "x",
        "partition": "p",
        "nodes": nodes,
        "node_count": len(nodes),
        "gpus": 8 * len(nodes),
        "submitted_at_s": at_s,
        "eligible_at_s": at_s,
        "started_at_s": start_s,
        "ended_at_s": end_s,
        "state": "COMPLETED",
        "exit_code": "0:0",
    }
    return RanJob(**(values | changes))  # type: ignore[arg-type]
