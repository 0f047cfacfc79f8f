"""Decides what the daemon does about nodes that mark a fault of their own while jobs run there. Pure.

A single fault costs its node and moves its jobs; faults on many nodes within a minute have a cause that they share, and
cost nothing but a person's attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_robust.config.site import BreakerConfig
from slurm_robust.marks.fault_marker import CLOCKS_DIFFER_S, FaultMarker
from slurm_robust.marks.node_findings import about_rdma
from slurm_robust.policy.cluster.breaker import allowed_out
from slurm_robust.policy.cluster.node_states import drained_by_us
from slurm_robust.slurm.client import Job, Node

STORM_S = 60.0
"""Faults of different nodes within this time belong together."""
STORM_SHARE = 0.5
"""Faults on more than this share of all nodes (of at least four) are a storm, whatever the breaker allows."""
PARTITION_STORM_NODES = 3
"""Faults on two nodes are not a storm, however small their partition is."""
GATHER_S = 1.0
"""A first fault waits this long for faults of other nodes, before anything is done about it."""
GATHER_MORE_S = 12.0
"""Each further fault within a minute waits this long: more faults may be on their way."""
SUPERVISOR_S = 60.0
"""How long a job's own supervisor has to leave the node, before the daemon acts in its place."""
STARTED_LATER_S = 5.0
"""A job that started this long after the fault has passed its prolog on that node, and is not moved."""
PLAN_EARLIER_S = 15.0
"""A job's supervisor may know of a fault up to this long before the daemon, which reads the nodes every few seconds."""


class SeenFault(NamedTuple):
    """A fault marker, and when the daemon saw it first."""

    marker: FaultMarker
    seen_s: float

    @property
    def at_s(self) -> float:
        """The time of the fault, by the node's clock; by the daemon's if the node's clock is ahead."""
        return min(float(self.marker.at_s), self.seen_s)


@dataclass(frozen=True)
class Storm:
    """A storm that was announced.

    Attributes:
        last_at_s: The time of the storm's own last fault. Faults that are only added later do not make the storm
            longer.
        kinds: The kinds of the storm's own faults.
        partitions: The partitions of the nodes with these faults.
        faults: Node → time of its fault: the faults of the storm's last minute, and the faults that were added later.
    """

    last_at_s: float
    kinds: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    faults: Mapping[str, float] = field(default_factory=dict)


class Stormy(NamedTuple):
    """Nodes whose faults are part of a storm: the storm's `own` faults, and the `late` ones that come after it."""

    own: frozenset[str]
    late: frozenset[str]


def in_storm(
    faults: Mapping[str, SeenFault], nodes: Mapping[str, Node], config: BreakerConfig, earlier: Storm | None = None
) -> Stormy:
    """Return the marked nodes whose fault is part of a storm.

    Args:
        faults: The faults of all marked nodes.
        nodes: All nodes. Nodes that we drained count with the time of their drain.
        config: The bounds of the breaker: faults of more nodes within a minute are a storm.
        earlier: The last storm. A fault of the same kind, in the same partition, belongs to it within a minute after
            it, and for as long as such faults are too many for one minute.
    """
    times = {**our_drains(nodes), **{name: fault.at_s for name, fault in faults.items()}}
    own = _crowded(times, nodes, config) & set(faults)
    if earlier is None:
        return Stormy(own, frozenset())
    goes_on = _crowded({**earlier.faults, **times}, nodes, config)
    late = frozenset(
        name
        for name, fault in faults.items()
        if name not in own
        and _like(earlier, fault, nodes[name])
        and (name in goes_on or abs(fault.at_s - earlier.last_at_s) <= STORM_S)
    )
    return Stormy(own, late)


def _like(storm: Storm, fault: SeenFault, node: Node) -> bool:
    return fault.marker.kind in storm.kinds and bool(storm.partitions & set(node.partitions))


def our_drains(nodes: Mapping[str, Node]) -> dict[str, float]:
    """Return node → time of our drain, for each node that is still out by a drain of ours."""
    return {n.name: float(n.reason_at_s) for n in nodes.values() if drained_by_us(n) and n.reason_at_s}


def near(name: str, faults: Mapping[str, SeenFault], others: Mapping[str, float]) -> frozenset[str]:
    """Return nodes with a fault within a minute of the fault of node `name`; `others`: faults without markers."""
    times = {**others, **{other: fault.at_s for other, fault in faults.items()}}
    at_s = faults[name].at_s
    return frozenset(other for other, other_s in times.items() if abs(other_s - at_s) <= STORM_S) - {name}


def grown(earlier: Storm | None, found: Stormy, faults: Mapping[str, SeenFault], nodes: Mapping[str, Node]) -> Storm:
    """Return the earlier storm with the faults that were found now, or a first storm if `earlier` is None."""
    before = earlier or Storm(0.0)
    now = {name: faults[name].at_s for name in found.own | found.late}
    newest_s = max(now.values(), default=0.0)
    kept = {name: at_s for name, at_s in before.faults.items() if at_s > newest_s - STORM_S} | now
    if not found.own:
        return Storm(before.last_at_s, before.kinds, before.partitions, kept)
    last_s = max(now[name] for name in found.own)
    goes_on = last_s - before.last_at_s <= STORM_S
    kinds = frozenset(faults[name].marker.kind for name in found.own)
    partitions = frozenset(p for name in found.own for p in nodes[name].partitions)
    return Storm(
        max(last_s, before.last_at_s if goes_on else 0.0),
        kinds | (before.kinds if goes_on else frozenset()),
        partitions | (before.partitions if goes_on else frozenset()),
        kept,
    )


def _partitions(nodes: Mapping[str, Node]) -> list[frozenset[str]]:
    members: dict[str, set[str]] = {}
    for node in nodes.values():
        for partition in node.partitions:
            members.setdefault(partition, set()).add(node.name)
    return [frozenset(names) for names in members.values()]


def _crowded(times: Mapping[str, float], nodes: Mapping[str, Node], config: BreakerConfig) -> frozenset[str]:
    """Return the nodes whose faults lie in a minute that has too many faults for single ones."""
    partitions, crowded = _partitions(nodes), set[str]()
    for begin_s in sorted(set(times.values())):
        names = frozenset(name for name, at_s in times.items() if begin_s <= at_s <= begin_s + STORM_S)
        if not names <= crowded and _too_many(names, len(nodes), partitions, config):
            crowded |= names
    return frozenset(crowded)


def _too_many(names: frozenset[str], nodes: int, partitions: list[frozenset[str]], config: BreakerConfig) -> bool:
    """Return whether faults on these nodes within a minute are a storm; `nodes`: how many nodes the site has."""
    if len(names) < 2:
        return False
    if len(names) > config.max_drains or (nodes >= 4 and len(names) > STORM_SHARE * nodes):
        return True
    least = PARTITION_STORM_NODES - 1
    return any(len(names & members) > max(allowed_out(members, config), least) for members in partitions)


def concerns(marker: FaultMarker, job: Job, gpus: frozenset[int] | None) -> bool | None:
    """Return whether a fault concerns a job on its node; None if only the job's own supervisor can tell.

    A GPU's fault concerns the jobs that were given this GPU, or any GPU if the fault names none. A lost RDMA port
    concerns jobs that train over RDMA between nodes.

    Args:
        marker: The fault.
        job: A job on this node.
        gpus: The GPUs that Slurm gave the job there; None if they are not known.
    """
    if about_rdma(marker.kind):
        return None if len(job.nodes) > 1 else False
    if not marker.about_gpus:
        return True
    if gpus is None:
        return None
    return bool(gpus.intersection(marker.gpus) if marker.gpus else gpus)


@dataclass(frozen=True)
class JobThere:
    """A job on a node with a fault.

    Attributes:
        supervised: A supervisor of its own watches the job, and learns of the fault too.
        protected: The daemon may bring the job back.
        stays: The job's supervisor only observes, or has told a plan since the fault: it knows why the job stays.
        recovering: A recovery of the job is open.
        decided: The daemon has already decided about this fault for the job.
        gpus: The GPUs that the job was given on the node; None if they are not known.
    """

    job: Job
    supervised: bool = False
    protected: bool = False
    stays: bool = False
    recovering: bool = False
    decided: bool = False
    gpus: frozenset[int] | None = None


@dataclass(frozen=True)
class FaultStep:
    """The next step for one node; `wait`: why nothing more is done yet, empty if the node may be drained."""

    bring_back: tuple[Job, ...] = ()
    wait: str = ""


def started_later(job: Job, fault: SeenFault) -> bool:
    """Return whether the job has certainly started after the fault, whatever the node's clock shows."""
    return job.start_at_s > min(fault.marker.at_s + CLOCKS_DIFFER_S, fault.seen_s) + STARTED_LATER_S


def in_question(there: JobThere, fault: SeenFault) -> bool:
    """Return whether the next step depends on which GPUs this job has."""
    if there.recovering or there.decided or not _concerned(there, fault):
        return False
    return there.protected or there.supervised or there.job.state == "CONFIGURING"


def _concerned(there: JobThere, fault: SeenFault) -> bool:
    job = there.job
    on_it = job.state in ("RUNNING", "CONFIGURING") and not job.completing and not started_later(job, fault)
    return on_it and not fault.marker.spares_jobs and concerns(fault.marker, job, there.gpus) is not False


def _left_to_its_supervisor(there: JobThere, fault: SeenFault) -> bool:
    """Return whether the job has a supervisor, and only this supervisor can tell whether the fault concerns the job."""
    return there.supervised and concerns(fault.marker, there.job, there.gpus) is None


def next_step(fault: SeenFault, jobs: Sequence[JobThere], waited_s: float, gather_s: float = GATHER_S) -> FaultStep:
    """Return which jobs are brought back now, and whether the node's drain waits.

    Args:
        fault: The fault of the node.
        jobs: All jobs on the node.
        waited_s: For how long the daemon has known that this node has a fault.
        gather_s: How long this fault waits for others.
    """
    if waited_s < gather_s:
        return FaultStep(wait="others may follow")
    wait, bring_back = "", []
    for there in jobs:
        job = there.job
        if not _concerned(there, fault):
            continue
        if there.recovering:
            wait = f"a recovery of job {job.ref.address} is under way"
        elif there.decided:
            continue
        elif job.state == "CONFIGURING":
            wait = f"job {job.ref.address} is about to start there"
        elif there.supervised and waited_s < SUPERVISOR_S:
            wait = f"the supervisor of job {job.ref.address} decides first"
        elif there.protected and not there.stays and not _left_to_its_supervisor(there, fault):
            bring_back.append(job)
    return FaultStep(tuple(bring_back), wait)
