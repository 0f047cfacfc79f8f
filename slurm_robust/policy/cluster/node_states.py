"""The rooms of a node: active, standby, seat, quarantine, drained; and who may go into which. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.config import Config
from slurm_robust.model import REASON_PREFIX
from slurm_robust.slurm.client import Job, Node, Reservation
from slurm_robust.slurm.values import expand, fold

QUARANTINE_PREFIX = "srobust-quarantine"
OURS = "srobust-"
"""Every reservation of ours begins with this."""
SLURMS_OWN_REASONS = ("Not responding",)
"""What slurmctld writes by itself when a node falls silent; no person said it."""


@dataclass(frozen=True)
class Cluster:
    """What slurmctld showed, read just now, and which standby nodes still have to be checked in full."""

    nodes: Mapping[str, Node]
    jobs: Sequence[Job]
    reservations: Sequence[Reservation]
    unchecked: frozenset[str] = frozenset()


def foreign(node: Node) -> bool:
    """True where somebody else took the node out of service: it is theirs, and we do nothing to it.

    A reason on a node in service says nothing: Slurm 24.11 leaves the text where it is when a node is resumed.
    """
    reason = node.reason.strip() if node.drained else ""
    return bool(reason) and not reason.startswith(REASON_PREFIX) and reason not in SLURMS_OWN_REASONS


def drained_by_us(node: Node) -> bool:
    """True where the node is out of service by the daemon, the prolog or the health check of this project."""
    return node.drained and node.reason.strip().startswith(REASON_PREFIX)


def merge(folded: str, names: Iterable[str]) -> str:
    """A folded list with more names in it."""
    return fold(sorted({*expand(folded), *names}))


def quarantine_name(node: str) -> str:
    """The reservation that keeps everyone off a suspect."""
    return f"{QUARANTINE_PREFIX}-{node}"


@dataclass(frozen=True)
class HardwareClass:
    """Nodes that can stand in for one another."""

    partition: str
    gres: str
    features: tuple[str, ...]

    @property
    def slug(self) -> str:
        """A short name for reservations: readable in front, unique by a digest behind."""
        text = "/".join((self.partition, self.gres, *self.features))
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.partition}-{self.gres}").strip("-")[:28]
        return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def class_of(node: Node, partition: str) -> HardwareClass:
    """The hardware class of a node within a partition (sockets such as `(S:0-1)` do not matter)."""
    gres = re.sub(r"\([^)]*\)", "", node.gres)
    return HardwareClass(partition, ",".join(sorted(filter(None, gres.split(",")))), tuple(sorted(node.features)))


def in_reservations(reservations: Iterable[Reservation], prefix: str = "") -> frozenset[str]:
    """All nodes of the reservations whose names begin with `prefix`."""
    return frozenset(n for r in reservations if r.name.startswith(prefix) for n in expand(r.nodes))


LOST_GRES = (
    "no job runs there, and Slurm counts their GRES as used: jobs that need it wait for ever. Slurm 22.05 loses count "
    "when a node dies under a job that is being requeued. Type: scontrol reconfigure"
)


def idle(node: Node) -> bool:
    """True where a job could start on the node now, its reservations apart."""
    return _empty(node) and not node.gres_used


def _empty(node: Node) -> bool:
    return node.usable and node.state == "IDLE" and "COMPLETING" not in node.flags


def lost_gres(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Nodes on which no job runs, and whose generic resources Slurm counts as given to one, sorted.

    Slurm 22.05 loses count when a node dies under a job that is being requeued. A job that needs them waits for ever.
    """
    return tuple(sorted(node.name for node in nodes if node.gres_used and _empty(node)))


def busy_nodes(jobs: Iterable[Job], but: frozenset[int] = frozenset()) -> frozenset[str]:
    """Nodes on which a job runs or ends, jobs `but` (raw ids) left out."""
    return frozenset(
        n for j in jobs if j.ref.job_id not in but for n in j.nodes if j.state == "RUNNING" or j.completing
    )


def candidates(job: Job, lost: Sequence[str], cluster: Cluster, config: Config, until_s: float) -> list[str]:
    """Nodes that can stand in for the lost: standby first, then idle ones that nobody holds; same hardware class.

    Of the standby nodes those come first that passed their full check. Those that a coming reservation touches before
    `until_s` come last.
    """
    held = cluster.reservations
    ours_taken = in_reservations(held, config.seat.prefix) | in_reservations(held, QUARANTINE_PREFIX)
    pools = in_reservations(held, config.standby.prefix)
    others = in_reservations(r for r in held if not r.name.startswith(OURS) and r.start_at_s <= until_s)
    reserved = in_reservations(r for r in held if r.name != job.reservation)
    busy = busy_nodes(cluster.jobs)
    kinds = {class_of(cluster.nodes[n], job.partition) for n in lost if n in cluster.nodes}
    out: list[tuple[bool, bool, bool, str]] = []
    for node in cluster.nodes.values():
        fits = job.partition in node.partitions and (not kinds or class_of(node, job.partition) in kinds)
        if (
            not fits
            or node.name in {*job.nodes, *ours_taken, *expand(job.exclude or "")}
            or node.name in busy
            or not idle(node)
        ):
            continue
        if node.name in pools or (node.name not in reserved and "RESERVED" not in node.flags):
            out.append((node.name in others, node.name not in pools, node.name in cluster.unchecked, node.name))
    return [name for *_, name in sorted(out)]


@dataclass(frozen=True)
class Pool:
    """What a standby pool should be.

    Attributes:
        nodes: The whole new list of members, sorted; empty means that there is nothing to hold.
        short: Members missing to the wanted size.
    """

    name: str
    kind: HardwareClass
    nodes: tuple[str, ...]
    short: int = 0


def plan_pools(
    nodes: Mapping[str, Node],
    reservations: Iterable[Reservation],
    *,
    prefix: str,
    size: int,
    partitions: tuple[str, ...],
    seat_prefix: str,
    keep_out: frozenset[str] = frozenset(),
    at_check: frozenset[str] = frozenset(),
) -> list[Pool]:
    """One pool for each hardware class: healthy members stay, the lost are replaced by idle nodes that nobody holds.

    A member that a seat has put to work leaves the pool (it shows as not idle); its place is refilled.

    Args:
        nodes: All nodes.
        reservations: All reservations.
        prefix: Of our standby reservations.
        size: Members wanted a pool.
        partitions: Partitions with a pool; empty means the first of each node's.
        seat_prefix: Of our seats; a node in a seat stays where it is, and is not taken anew.
        keep_out: Nodes that must not be taken, for example those in quarantine.
        at_check: Members that our own check keeps busy: they stay.
    """
    held = list(reservations)
    seats = in_reservations(held, seat_prefix)
    others = in_reservations(r for r in held if not r.name.startswith(prefix))
    members = {r.name: expand(r.nodes) for r in held if r.name.startswith(prefix)}
    kinds: dict[HardwareClass, list[str]] = {}
    for node in nodes.values():
        chosen = [p for p in node.partitions if p in partitions] if partitions else list(node.partitions[:1])
        for partition in chosen[:1]:
            kinds.setdefault(class_of(node, partition), []).append(node.name)
    pools: list[Pool] = []
    taken: set[str] = set(keep_out)
    for kind, names in sorted(kinds.items(), key=lambda item: item[0].slug):
        name = f"{prefix}-{kind.slug}"
        present = members.get(name, ())
        stays = [n for n in present if n in names and (idle(nodes[n]) or n in seats or n in at_check)]
        keep = [n for n in stays if n not in taken and (n in seats or nodes[n].usable)][:size]
        fresh = [
            n for n in sorted(names, reverse=True) if n not in {*keep, *taken, *others, *present} and idle(nodes[n])
        ]
        fresh = [n for n in fresh if "RESERVED" not in nodes[n].flags]
        chosen_nodes = tuple(sorted(keep + fresh[: max(0, size - len(keep))]))
        taken.update(chosen_nodes)
        if chosen_nodes or present:
            pools.append(Pool(name, kind, chosen_nodes, max(0, size - len(chosen_nodes))))
    return pools
