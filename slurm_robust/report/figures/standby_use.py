"""Were standby nodes there when they were needed, what did they cost, and what would one more standby node have saved?

A node is needed if a recovery was carried out, evicted a node and gave the job other nodes (seat or requeue). Hit = the
node was replaced from a pool; miss = it was not. Idle cost = node hours that pools held. Left out: whether the pool's
nodes were checked, evictions inside an allocation (spares), and sites that only observe.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.core.model import Attempt
from slurm_robust.daemon.store.attempt_ledger import PoolSize
from slurm_robust.report.facts import ClosedIncident, Facts
from slurm_robust.report.figures.failures import is_failure
from slurm_robust.report.figures.reliability import time_back_s
from slurm_robust.report.figures.spread import spread

HOUR_S = 3600.0
_ROADS = frozenset({"seat", "owner_requeue", "plain_requeue"})


@dataclass(frozen=True)
class PoolUse:
    """The use of one pool within the window.

    Attributes:
        wanted: The wanted size at the end.
        held_hours: Node hours that it held.
        held_gpu_hours: The hours held, in GPU hours; None if the nodes' GPUs are not known.
        short_hours: Hours in which the pool held fewer nodes than wanted.
    """

    pool: str
    partition: str
    wanted: int
    held_hours: float
    held_gpu_hours: float | None
    short_hours: float


@dataclass(frozen=True)
class AnotherStandby:
    """The changes that one more standby node in each pool would have made.

    Attributes:
        misses: Nodes that the model of the real pools could not replace (compare with `StandbyUse.misses`).
        misses_with: Nodes that the model could not replace with one more standby node in each pool.
        faster_restarts: Restarts that would have found all their nodes.
        saved_hours: GPU hours (node hours without GPUs) that such restarts would have saved; None if it cannot be said.
        held_hours: Node hours that the further nodes would have been held.
        sentence: The meaning of the figures, or why they are not known.
    """

    misses: int
    misses_with: int
    faster_restarts: int
    saved_hours: float | None
    held_hours: float
    sentence: str


@dataclass(frozen=True)
class StandbyUse:
    """The use of all pools.

    Attributes:
        pools: The pools; empty if the site keeps no pool, or the journal does not say.
        needed: Nodes that recoveries had to replace.
        hits: Nodes that were replaced from a pool.
        another: The effect of one more standby node; None if there was no pool.
    """

    pools: tuple[PoolUse, ...]
    needed: int
    hits: int
    another: AnotherStandby | None

    @property
    def misses(self) -> int:
        """Nodes that had to be replaced otherwise."""
        return self.needed - self.hits

    @property
    def hit_rate(self) -> float | None:
        """Hits of the nodes that were needed; None if none was, or there was no pool."""
        return self.hits / self.needed if self.needed and self.pools else None


def standby_use(facts: Facts) -> StandbyUse:
    """Hits, misses and idle cost of the window."""
    needing = [row for row in facts.incidents if needs_nodes(row)]
    rows = _by_pool(facts.pools)
    pools = tuple(_pool(name, sizes, facts) for name, sizes in sorted(rows.items()))
    hits = sum(_hits(row) for row in needing)
    another = _another(facts, rows, needing) if pools else None
    return StandbyUse(pools, sum(len(row.evict) for row in needing), hits, another)


def needs_nodes(incident: ClosedIncident) -> bool:
    """Return whether the recovery was carried out, and had to give the job other nodes."""
    return bool(incident.evict) and incident.mode == "act" and incident.road in _ROADS and is_failure(incident)


def _hits(incident: ClosedIncident) -> int:
    return min(len(incident.standby), len(incident.evict))


def _by_pool(pools: Iterable[PoolSize]) -> dict[str, list[PoolSize]]:
    rows: dict[str, list[PoolSize]] = defaultdict(list)
    for size in sorted(pools, key=lambda row: row.at_s):
        rows[size.pool].append(size)
    return dict(rows)


def _pool(name: str, sizes: Sequence[PoolSize], facts: Facts) -> PoolUse:
    held_s = short_s = 0.0
    for number, size in enumerate(sizes):
        end_s = sizes[number + 1].at_s if number + 1 < len(sizes) else facts.to_s
        seconds = max(0.0, min(end_s, facts.to_s) - max(size.at_s, facts.from_s))
        held_s += seconds * len(size.nodes)
        short_s += seconds * (len(size.nodes) < size.wanted)
    gpus = gpus_of_a_node(facts)
    hours = held_s / HOUR_S
    return PoolUse(
        *(name, sizes[-1].partition, sizes[-1].wanted, hours),
        *(hours * gpus if gpus is not None else None, short_s / HOUR_S),
    )


def gpus_of_a_node(facts: Facts) -> int | None:
    """GPUs of each node, where all classes that have any have the same number; None if that is not so."""
    found = {size.gpus for size in facts.sizes if size.gpus and size.nodes}
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True)
class _Need:
    at_s: float
    nodes: int
    refilled_at_s: float
    incident: ClosedIncident


def _another(facts: Facts, rows: Mapping[str, Sequence[PoolSize]], needing: Sequence[ClosedIncident]) -> AnotherStandby:
    by_pool, partitions = defaultdict[str, list[_Need]](list), _partitions(facts)
    for incident in sorted(needing, key=lambda row: row.opened_at_s):
        partition = partitions.get(incident.attempt)
        fit = [name for name, sizes in rows.items() if len(rows) == 1 or sizes[-1].partition == partition]
        if fit:
            by_pool[fit[0]].append(_need(incident, rows[fit[0]], facts))
    misses = misses_with = 0
    better = list[ClosedIncident]()
    for name, needs in by_pool.items():
        before, after = _replay(needs, rows[name], 0), _replay(needs, rows[name], 1)
        misses, misses_with = misses + sum(before), misses_with + sum(after)
        better += [need.incident for need, one, other in zip(needs, before, after, strict=True) if one and not other]
    saved, sentence = _saved(better, needing)
    held_hours = len(rows) * (facts.to_s - facts.from_s) / HOUR_S
    return AnotherStandby(misses, misses_with, len(better), saved, held_hours, sentence)


def _partitions(facts: Facts) -> dict[str, str]:
    return {
        Attempt(a.cluster, a.times.job, a.times.restart, int(a.times.start_at_s)).key: a.partition
        for a in facts.attempts
    }


def _need(incident: ClosedIncident, sizes: Sequence[PoolSize], facts: Facts) -> _Need:
    """Return the need, with the time when the pool was seen full again; the end of the window if it was not."""
    at_s = incident.times.get("accepted", incident.opened_at_s)
    full = (s.at_s for s in sizes if s.at_s > at_s and len(s.nodes) >= s.wanted)
    return _Need(at_s, len(incident.evict), next(full, facts.to_s), incident)


def _replay(needs: Sequence[_Need], sizes: Sequence[PoolSize], more: int) -> list[int]:
    """Nodes that each need would not have got, had the pool had `more` nodes; each is refilled when it really was."""
    begins, taken, missing = [size.at_s for size in sizes], list[float](), list[int]()
    for need in needs:
        taken = [at_s for at_s in taken if at_s > need.at_s]
        place = bisect_right(begins, need.at_s) - 1
        wanted = sizes[place].wanted + more if place >= 0 else 0
        got = min(need.nodes, max(0, wanted - len(taken)))
        taken += [need.refilled_at_s] * got
        missing.append(need.nodes - got)
    return missing


def _saved(better: Sequence[ClosedIncident], needing: Sequence[ClosedIncident]) -> tuple[float | None, str]:
    if not better:
        return 0.0, "Another standby node in each pool would have made no restart faster."
    fast = spread(s for row in needing if _hits(row) == len(row.evict) and (s := time_back_s(row)) is not None)
    slow = spread(s for row in needing if _hits(row) < len(row.evict) and (s := time_back_s(row)) is not None)
    count = f"{len(better)} restart{'s' if len(better) > 1 else ''}"
    if fast.median is None or slow.median is None:
        which = "with a standby node" if fast.median is None else "without one"
        return None, f"It would have made {count} faster; how much cannot be said: no restart {which} has its times."
    each_s = max(0.0, slow.median - fast.median)
    weight = sum(row.gpus or row.nodes for row in better)
    return each_s * weight / HOUR_S, (
        f"Another standby node in each pool would have made {count} faster, by {each_s:.0f} s each: "
        f"a restart with standby nodes took {fast.median:.0f} s in the median (of {fast.n}), one without "
        f"{slow.median:.0f} s (of {slow.n})."
    )
