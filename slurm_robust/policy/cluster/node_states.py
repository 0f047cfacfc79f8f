"""Names the state of a node (active, standby, seat, quarantine, drained, idle), and which node may go where. Pure."""

from __future__ import annotations

import enum
import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from slurm_robust.config.site import Config, StandbyConfig
from slurm_robust.core.model import REASON_PREFIX
from slurm_robust.slurm.client import Job, Node, Reservation
from slurm_robust.slurm.values import expand, fold

QUARANTINE_PREFIX = "srobust-quarantine"
PAIR_PREFIX = "srobust-pair"
"""Begins the names of reservations of a suspect and the node that it is tested with."""
OURS = "srobust-"
"""Names of the daemon's reservations begin with this."""
THERE = frozenset(("CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"))
"""States of a job that has processes on its nodes, or soon will."""
OF_USE_S = 3600.0
"""A node that is free for less time is of no use: its full check, and a job's first steps after it, take time."""
SLURMS_OWN_REASONS = ("Not responding",)
"""Reasons that slurmctld itself, and not a person, writes when a node stops responding."""

HELD_UP = "held up the end of job"
"""The reason of a node begins so if the node was set DOWN only to end a job."""
SILENT = "does not respond"
REBOOTED = "Node unexpectedly rebooted"
"""The reason of a node that slurmctld keeps DOWN because the node booted without notice to Slurm."""
FAILED_FOR_SLURM = ("Prolog error", "Epilog error", "Kill task failed", "batch job complete failure")
"""The reasons of nodes begin so if slurmctld drained them because something of Slurm's own failed there."""
_ELSE = frozenset(("DRAIN", "NOT_RESPONDING", "REBOOT_ISSUED", "POWERING_DOWN", "POWERED_DOWN", "POWERING_UP"))


class NodeState(str, enum.Enum):
    """The state of a node for the daemon; the members are in the order in which they are shown."""

    ACTIVE = "active"
    """A job runs on it."""
    STANDBY = "standby"
    """Held in a standby pool."""
    SEAT = "seat"
    """Held for a requeued job."""
    QUARANTINE = "quarantine"
    """A suspect: held free of jobs until it was checked."""
    DRAINED = "drained"
    """Out of service."""
    IDLE = "idle"
    """The node is in none of the states above."""


def state_of(node: Node, *, quarantined: bool, seat: bool, standby: bool, job: bool) -> NodeState:
    """Return the state of a node: what keeps the node from other jobs counts before the job that runs on it."""
    states = (
        (node.drained, NodeState.DRAINED),
        (quarantined, NodeState.QUARANTINE),
        (job, NodeState.ACTIVE),
        (seat, NodeState.SEAT),
        (standby, NodeState.STANDBY),
    )
    return next((state for holds, state in states if holds), NodeState.IDLE)


@dataclass(frozen=True)
class Cluster:
    """The jobs, nodes and reservations that slurmctld shows just now, and the standby nodes that need a full check.

    Attributes:
        suspected: Nodes that stayed in service as suspects a while ago: they are the last choice.
        withheld: Suspected nodes that are not taken for a seat before their full check.
    """

    nodes: Mapping[str, Node]
    jobs: Sequence[Job]
    reservations: Sequence[Reservation]
    unchecked: frozenset[str] = frozenset()
    suspected: frozenset[str] = frozenset()
    withheld: frozenset[str] = frozenset()


def foreign(node: Node) -> bool:
    """Return whether somebody else took the node out of service: the daemon does nothing to it.

    A reason on a node in service means nothing: Slurm 24.11 keeps the text when a node is resumed.
    """
    reason = node.reason.strip() if node.drained else ""
    return bool(reason) and not reason.startswith(REASON_PREFIX) and reason not in SLURMS_OWN_REASONS


def rebooted(state: Collection[str], reason: str) -> bool:
    """Return whether a node is DOWN only because Slurm saw it boot; `state` includes the node's flags."""
    return "DOWN" in state and _ELSE.isdisjoint(state) and reason.startswith(REBOOTED)


def drained_by_us(node: Node) -> bool:
    """Return whether the node is out of service by the daemon, the prolog or the health check of this project."""
    return node.drained and node.reason.strip().startswith(REASON_PREFIX)


def merge(folded: str, names: Iterable[str]) -> str:
    """Return a folded list with these names added."""
    return fold(sorted({*expand(folded), *names}))


def quarantine_name(node: str) -> str:
    """Return the name of the reservation that keeps all jobs off a suspect."""
    return f"{QUARANTINE_PREFIX}-{node}"


@dataclass(frozen=True)
class HardwareClass:
    """Nodes that can replace one another."""

    partition: str
    gres: str
    features: tuple[str, ...]

    @property
    def slug(self) -> str:
        """A short name for reservations: a readable part, and a digest that makes it unique."""
        text = "/".join((self.partition, self.gres, *self.features))
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.partition}-{self.gres}").strip("-")[:28]
        return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def class_of(node: Node, partition: str) -> HardwareClass:
    """Return the hardware class of a node within a partition (sockets such as `(S:0-1)` do not matter)."""
    return _class(partition, node.gres, node.features)


@lru_cache(maxsize=1024)
def _class(partition: str, gres: str, features: tuple[str, ...]) -> HardwareClass:
    """Return the hardware class; cached, since thousands of nodes are of a few classes."""
    plain = re.sub(r"\([^)]*\)", "", gres)
    return HardwareClass(partition, ",".join(sorted(filter(None, plain.split(",")))), tuple(sorted(features)))


def in_reservations(reservations: Iterable[Reservation], prefix: str = "") -> frozenset[str]:
    """Return all nodes of the reservations whose names begin with `prefix`."""
    return frozenset(n for r in reservations if r.name.startswith(prefix) for n in expand(r.nodes))


def due(reservations: Iterable[Reservation], until_s: float) -> list[Reservation]:
    """Return the reservations that keep nodes from a use until `until_s`: this project's, and others that begin before.

    Later reservations do not count: an announced maintenance may cover all nodes for weeks.
    """
    return [r for r in reservations if r.name.startswith(OURS) or r.start_at_s <= until_s]


LOST_GRES = (
    "no job runs there, but Slurm counts their GRES as used: jobs that need them wait for ever. Slurm 22.05 miscounts "
    "when a node dies under a job that is being requeued. Type: scontrol reconfigure"
)


def idle(node: Node) -> bool:
    """Return whether a job could start on the node now, apart from the node's reservations."""
    return node.state == "IDLE" and not node.gres_used and _empty(node)


def _empty(node: Node) -> bool:
    return node.usable and node.state == "IDLE" and "COMPLETING" not in node.flags


def lost_gres(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return nodes on which no job runs, but whose generic resources Slurm counts as used by a job, sorted."""
    return tuple(sorted(node.name for node in nodes if node.gres_used and _empty(node)))


def is_there(job: Job) -> bool:
    """Return whether a job starts, runs, is suspended or ends on its nodes."""
    return job.state in THERE or job.completing


def busy_nodes(jobs: Iterable[Job]) -> frozenset[str]:
    """Return nodes on which a job is."""
    return frozenset(n for job in jobs if is_there(job) for n in job.nodes)


def candidates(job: Job, lost: Sequence[str], cluster: Cluster, config: Config, until_s: float) -> list[str]:
    """Return nodes that can replace the lost ones: of the same hardware class, standby nodes first, then idle ones.

    Standby nodes that passed their full check come first. Suspects come late, and nodes that a reservation needs before
    `until_s` come last. A waiting job may name several partitions, and runs in one: it is taken to run in the first one
    that has all nodes that it lost and keeps. Nodes that a seat of the job already holds count as free for the job.
    """
    seat = f"{config.seat.prefix}-{job.ref.job_id}"
    own = in_reservations(r for r in cluster.reservations if r.name == seat)
    held = [r for r in cluster.reservations if r.name != seat]
    prefixes = (config.seat.prefix, QUARANTINE_PREFIX, PAIR_PREFIX)
    ours_taken = {name for prefix in prefixes for name in in_reservations(held, prefix)}
    pools = in_reservations(held, config.standby.prefix)
    soon = due(held, until_s)
    others = in_reservations(r for r in soon if not r.name.startswith(OURS))
    reserved = in_reservations(r for r in soon if r.name not in job.reservation.split(","))
    busy = busy_nodes(cluster.jobs)
    gone = [cluster.nodes[n] for n in lost if n in cluster.nodes]
    named = job.partition.split(",")
    its = [*gone, *(cluster.nodes[n] for n in job.nodes if n in cluster.nodes)]
    partition = next((p for p in named if all(p in node.partitions for node in its)), named[0])
    kinds = {class_of(node, partition) for node in gone}
    not_these = {*job.nodes, *ours_taken, *expand(job.exclude or ""), *busy, *cluster.withheld}
    out: list[tuple[bool, bool, bool, bool, str]] = []
    for node in cluster.nodes.values():
        if node.name in not_these or partition not in node.partitions or not idle(node):
            continue
        if kinds and class_of(node, partition) not in kinds:
            continue
        unreserved = node.name not in reserved and ("RESERVED" not in node.flags or node.name in own)
        if node.name in pools or unreserved:
            last = (node.name in others, node.name in cluster.suspected)
            out.append((*last, node.name not in pools, node.name in cluster.unchecked, node.name))
    return [name for *_, name in sorted(out)]


@dataclass(frozen=True)
class Pool:
    """The planned state of a standby pool.

    Attributes:
        nodes: The whole new list of members, sorted; empty if the pool holds no node.
        short: How many members are missing to the wanted size.
        wanted: The wanted size.
    """

    name: str
    kind: HardwareClass
    nodes: tuple[str, ...]
    short: int = 0
    wanted: int = 0


@dataclass(frozen=True)
class PoolRules:
    """The site's choices for pools, and the present facts that a plan needs.

    Attributes:
        seat_prefix: The names of seats' reservations begin so.
        sizes: Slug of a class → size of its pool, if the site chose `auto`; `start_size` for classes without an entry.
        lacked: Nodes that could be used by a job that waits for nodes after a requeue: they are not added to pools.
        until_s: `OF_USE_S` from now: a node that is reserved from before this time on is of no use to a pool.
    """

    config: StandbyConfig
    seat_prefix: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    until_s: float = math.inf
    lacked: frozenset[str] = frozenset()

    def size_of(self, kind: HardwareClass) -> int:
        """Return how many nodes the pool of a class should have."""
        if self.config.size == "auto":
            return self.sizes.get(kind.slug, min(self.config.start_size, self.config.max_size))
        return self.config.size


def plan_pools(
    nodes: Mapping[str, Node],
    reservations: Iterable[Reservation],
    rules: PoolRules,
    *,
    keep_out: frozenset[str] = frozenset(),
    at_check: frozenset[str] = frozenset(),
    suspected: Mapping[str, bool] = MappingProxyType({}),
) -> list[Pool]:
    """Return one pool for each hardware class: healthy members stay, lost ones are replaced by idle unreserved nodes.

    A member that got a job through a seat leaves the pool (it is not idle any more), and its place is refilled.
    A member in a seat stays in its pool, and is not added to another pool. A member that is busy with the daemon's own
    check (`at_check`) stays, too. Not added are nodes in `keep_out` (for example in quarantine), nodes that a waiting
    job `lacked` (without them the job could wait for ever), and nodes that are reserved from before `until_s` on. Nodes
    that were `suspected`, and nodes that are reserved from a later time on, come last; a `suspected` member that was
    not checked since (False) gives way to another node.
    """
    reserved, config = list(reservations), rules.config
    seats = in_reservations(reserved, rules.seat_prefix)
    others = in_reservations(r for r in due(reserved, rules.until_s) if not r.name.startswith(config.prefix))
    later = in_reservations(r for r in reserved if not r.name.startswith(OURS))
    members = {r.name: expand(r.nodes) for r in reserved if r.name.startswith(config.prefix)}
    pools: list[Pool] = []
    taken: set[str] = set(keep_out)
    for kind, names in sorted(by_class(nodes.values(), config.partitions).items(), key=lambda item: item[0].slug):
        name, size = f"{config.prefix}-{kind.slug}", rules.size_of(kind)
        present = members.get(name, ())
        stay = [n for n in present if n in names and n not in taken and _stays(nodes[n], seats, at_check)]
        unsure = [n for n in stay if not suspected.get(n, True) and n not in seats and n not in at_check]
        keep = [n for n in stay if n not in unsure][:size]
        not_these = {*taken, *rules.lacked, *others, *present}
        free = sorted((n for n in sorted(names, reverse=True) if n not in not_these), key=later.__contains__)
        fresh = [n for n in free if idle(nodes[n]) and "RESERVED" not in nodes[n].flags]
        more = [*(n for n in fresh if n not in suspected), *unsure, *(n for n in fresh if n in suspected)]
        chosen = tuple(sorted(keep + more[: max(0, size - len(keep))]))
        taken.update(chosen)
        if chosen or present:
            pools.append(Pool(name, kind, chosen, max(0, size - len(chosen)), size))
    return pools


def by_class(nodes: Iterable[Node], partitions: tuple[str, ...]) -> dict[HardwareClass, list[str]]:
    """Return the names of nodes by hardware class, each node in the first of its partitions that may have a pool."""
    kinds: dict[HardwareClass, list[str]] = {}
    for node in nodes:
        partition = next((p for p in node.partitions if not partitions or p in partitions), None)
        if partition is not None:
            kinds.setdefault(class_of(node, partition), []).append(node.name)
    return kinds


def _stays(member: Node, seats: frozenset[str], at_check: frozenset[str]) -> bool:
    """Return whether a member stays in its pool."""
    return member.name in seats or (member.usable and (member.name in at_check or idle(member)))
