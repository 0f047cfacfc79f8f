"""Defines what is known of a cluster's past as typed rows: from journal, incident folders and Slurm's accounting.

All times are seconds since the epoch (UTC). A time that is not known is None. A time that cannot be true is kept, and
`Facts.doubts` has a sentence about it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_robust.daemon.store.attempt_ledger import ClusterSize, PoolSize, SupervisedAttempt

_XID = re.compile(r"\bS?XID (\d{1,5})\b")


@dataclass(frozen=True)
class ClosedIncident:
    """One incident from the journal, with the cause from its folder if that can be read.

    Attributes:
        key: Unique name in the journal.
        id: The incident's name in the job, and of its folder.
        attempt: Key of the attempt in which it happened (`model.Attempt.key`).
        kind: `claim`, `node_lost`, `node_fault`, `owner`, `report`.
        mode: `act` or `observe`.
        outcome: The journal's outcome; empty while the incident is open.
        times: Stamps, keys of `model.TIME_KEYS` and `accepted`. `first_step` is the first step after the incident,
            `first_new_step` the first one that had not been made before.
        road: The plan's road (`model.Road` value), empty without a plan.
        category: The cause, a category of `diagnose.taxonomy`; empty if unknown.
        blame: Who is at fault by the same rules; empty if unknown.
        nodes: How many nodes the job had; 0 if unknown.
        gpus: The number of GPUs on all nodes; 0 if unknown.
        folder: The job's own report.
    """

    key: str
    id: str
    lineage: str
    cluster: str
    job: str
    job_id: int
    user: str
    attempt: str
    restart: int
    kind: str
    mode: str
    state: str
    outcome: str
    reason: str
    opened_at_s: float
    closed_at_s: float | None
    times: Mapping[str, float]
    conclusion: str = ""
    confidence: float = 0.0
    suspects: tuple[str, ...] = ()
    road: str = ""
    evict: tuple[str, ...] = ()
    standby: tuple[str, ...] = ()
    verdict: str = ""
    plan: str = ""
    category: str = ""
    blame: str = ""
    nodes: int = 0
    gpus: int = 0
    folder: str = ""


@dataclass(frozen=True)
class TakenAction:
    """One action of the daemon."""

    incident: str
    kind: str
    target: str
    reason: str
    planned: bool
    calls: int
    called_at_s: float | None
    done_at_s: float | None
    error: str


@dataclass(frozen=True)
class NodeDrain:
    """A node out of service by slurm_robust, until somebody or a repair resumed it (None: still).

    Attributes:
        reverted: Whether the drain was needless, as far as is known: the check passed afterwards without a repair, or a
            person resumed the node within the hour.
    """

    node: str
    at_s: float
    reason: str
    ended_at_s: float | None
    reverted: bool = False

    @property
    def xid(self) -> int | None:
        """The XID that the reason names."""
        found = _XID.search(self.reason)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class NodeStrike:
    """A job suspected the node, and its check passed, or a test failed."""

    node: str
    at_s: float
    job_id: int
    lineage: str
    user: str
    incident: str
    why: str
    failed_test: str = ""


@dataclass(frozen=True)
class NodeRepair:
    """A repair that the daemon had done."""

    node: str
    remedy: str
    begun_at_s: float
    ended_at_s: float | None
    outcome: str
    why: str


@dataclass(frozen=True)
class RanJob:
    """One run of any job, from Slurm's accounting: a requeued job has several.

    Attributes:
        nodes: The names of its nodes; empty if it never ran.
        restart: How many earlier runs of the job the accounting has.
        state: `COMPLETED`, `FAILED`, `CANCELLED`, `TIMEOUT`, `NODE_FAIL`, `OUT_OF_MEMORY`, `PREEMPTED`, `REQUEUED`, …
        exit_code: `code:signal`.
    """

    cluster: str
    job: str
    job_id: int
    restart: int
    user: str
    account: str
    name: str
    partition: str
    nodes: tuple[str, ...]
    node_count: int
    gpus: int
    submitted_at_s: float | None
    eligible_at_s: float | None
    started_at_s: float | None
    ended_at_s: float | None
    state: str
    exit_code: str


@dataclass(frozen=True)
class Facts:
    """Everything that is known of the time from `from_s` to `to_s`.

    Attributes:
        read_at_s: When it was read; what still ran then has no end.
        doubts: Sentences for people: sources that were away, times that do not add up, rows that could not be read.
        journal_read: False if the journal could not be read: what only it has is not known, rather than nothing.
    """

    from_s: float
    to_s: float
    read_at_s: float
    cluster: str = ""
    attempts: tuple[SupervisedAttempt, ...] = ()
    incidents: tuple[ClosedIncident, ...] = ()
    actions: tuple[TakenAction, ...] = ()
    drains: tuple[NodeDrain, ...] = ()
    strikes: tuple[NodeStrike, ...] = ()
    repairs: tuple[NodeRepair, ...] = ()
    pools: tuple[PoolSize, ...] = ()
    sizes: tuple[ClusterSize, ...] = ()
    jobs: tuple[RanJob, ...] = ()
    doubts: tuple[str, ...] = field(default=())
    journal_read: bool = True
