"""What the daemon does about nodes that mark a fault of their own while jobs run there. Pure.

A single fault costs its node and moves its jobs; faults on many nodes within a minute have a cause that they share, and
cost nothing but a person's attention.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.config import BreakerConfig
from slurm_robust.fault_marker import FaultMarker
from slurm_robust.policy.cluster.breaker import over_limit
from slurm_robust.policy.cluster.node_states import drained_by_us
from slurm_robust.slurm.client import Job, Node

STORM_S = 60.0
"""Faults of different nodes within this time belong together."""
STORM_SHARE = 0.5
"""With more than this share of (at least four) nodes, it is a storm whatever the breaker allows."""
GATHER_S = 1.0
"""A first fault waits this long for others, before anything is done about it."""
SUPERVISOR_S = 60.0
"""How long a job's own supervisor has to leave the node, before the daemon acts in its place."""
STARTED_LATER_S = 5.0
"""A job that started this long after the fault has passed its prolog on that node, and is not moved."""


@dataclass(frozen=True)
class Storm:
    """A storm that was announced: until when its faults came, seconds since the epoch."""

    last_at_s: float


def in_storm(
    faults: Mapping[str, float], nodes: Mapping[str, Node], config: BreakerConfig, earlier: Storm | None = None
) -> frozenset[str]:
    """Those of the marked nodes whose fault is part of a storm.

    Args:
        faults: When each of them marked its fault.
        nodes: All nodes. Those that we drained count with the time of their drain: some of the nodes that a storm
            strikes have no jobs, and drain themselves.
        config: More nodes within a minute than the breaker would allow are a storm.
        earlier: The last storm: what comes within a minute after it belongs to it.
    """
    times = {name: float(node.reason_at_s) for name, node in nodes.items() if drained_by_us(node) and node.reason_at_s}
    times |= faults
    storm = set()
    for name, at_s in faults.items():
        near = frozenset(other for other, other_s in times.items() if abs(other_s - at_s) <= STORM_S)
        late = earlier is not None and abs(at_s - earlier.last_at_s) <= STORM_S
        if late or _too_many(near, nodes, config):
            storm.add(name)
    return frozenset(storm)


def _too_many(names: frozenset[str], nodes: Mapping[str, Node], config: BreakerConfig) -> bool:
    if len(names) < 2:
        return False
    if len(nodes) >= 4 and len(names) > STORM_SHARE * len(nodes):
        return True
    partitions: dict[str, set[str]] = {}
    for node in nodes.values():
        for partition in node.partitions:
            partitions.setdefault(partition, set()).add(node.name)
    known = {partition: frozenset(members) for partition, members in partitions.items()}
    return bool(over_limit([], known, config, now_s=0.0, more=names))


def touches(fault_gpus: Collection[int], job_gpus: Collection[int]) -> bool:
    """Whether a fault of these GPUs concerns a job that was given those; none at all stands for not known."""
    return not fault_gpus or not job_gpus or bool(set(fault_gpus) & set(job_gpus))


@dataclass(frozen=True)
class JobThere:
    """A job on a node with a fault.

    Attributes:
        supervised: Its own supervisor watches it, and learns of the fault too.
        protected: The daemon may bring it back.
        stays: Its supervisor has told a plan since the fault: it only observes, or knows why it does not leave.
        recovering: A recovery of it is open.
        decided: The daemon has decided about this very fault already.
        gpus: The GPUs it was given there; empty where they are not known.
    """

    job: Job
    supervised: bool = False
    protected: bool = False
    stays: bool = False
    recovering: bool = False
    decided: bool = False
    gpus: frozenset[int] = frozenset()


@dataclass(frozen=True)
class FaultStep:
    """What to do now about one node; `wait`: why nothing more is done yet, empty where the node may be drained."""

    bring_back: tuple[Job, ...] = ()
    wait: str = ""


def next_step(marker: FaultMarker, jobs: Sequence[JobThere], seen_s: float) -> FaultStep:
    """Which jobs are brought back now, and whether the node's drain waits; the fault is known for `seen_s`."""
    if seen_s < GATHER_S:
        return FaultStep(wait="others may follow")
    wait, bring_back = "", []
    for there in jobs:
        job = there.job
        over = job.state != "RUNNING" or job.completing or job.start_at_s > marker.at_s + STARTED_LATER_S
        if over or not touches(marker.gpus, there.gpus):
            continue
        if there.recovering:
            wait = f"a recovery of job {job.ref.address} is under way"
        elif there.decided:
            continue
        elif there.supervised and seen_s < SUPERVISOR_S:
            wait = f"the supervisor of job {job.ref.address} decides first"
        elif there.protected and not there.stays:
            bring_back.append(job)
    return FaultStep(tuple(bring_back), wait)
