"""Chooses the timings that can be judged: ranks with enough steps, steps that are alike, and comparable ranks."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.localize.ranks import name
from slurm_robust.localize.slow.effects import usable_steps
from slurm_robust.localize.slow.outliers import MIN_STEPS
from slurm_robust.localize.slow.peers import Peers, peers_of
from slurm_robust.localize.slow.robust_statistics import Floats, Places, middle
from slurm_robust.localize.timings import StepTimings

_ROW_SHARE = 0.5
"""A rank with fewer than this share of the steps of the rank with the most is left out."""
_LOCKSTEP_STEPS = 1.5
"""Ranks that synchronise are never further apart than about a step."""


@dataclass(frozen=True)
class Case:
    """The judged data: usable ranks and steps, and which rank is compared with which.

    Attributes:
        table: One row for each usable step, one column for each usable rank: the rank's own work, seconds; NaN for
            gaps.
        ranks: The rank of each column.
        nodes: The node of each column, empty if it is not known.
        node_numbers: The nodes as numbers in the order of their first rank, -1 if the node is not known.
        steps: The numbers of the usable steps.
        derived: Ranks whose own work is only known as total less communication.
    """

    table: Floats
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    node_numbers: Places
    steps: tuple[int, ...]
    peers: Peers
    notes: tuple[str, ...] = ()
    derived: frozenset[int] = frozenset()


def make_case(timings: StepTimings, sizes: Mapping[str, int], order: str, world: int) -> Case | Verdict:
    """Return the case, or the verdict that there is none: too few ranks or steps, or only totals in lockstep."""
    notes: list[str] = []
    table, wanted = _table(timings.compute), "the time that each rank computes, without waiting (compute_s)"
    if not np.isfinite(table).any():
        table = _table(timings.total)
        if in_lockstep(table):
            reason = "every rank takes the same time for a step, since ranks wait for each other"
            return Verdict(Conclusion.UNDETERMINED, f"{reason}: totals cannot show which is slow", missing=(wanted,))
        notes.append(f"{wanted}; totals were used instead, since they differ between ranks")
    counts = np.isfinite(table).sum(axis=0)
    enough = np.flatnonzero(counts >= max(MIN_STEPS, _ROW_SHARE * counts.max()))
    if len(enough) < 2:
        few = f"{counts.max()} steps of {len(counts)} ranks"
        reason = f"too little to compare: {few}; at least {MIN_STEPS} steps of two ranks are needed"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("timings of more steps",))
    ranks = tuple(timings.ranks[at] for at in enough)
    lacking = set(range(world)).difference(ranks)
    if lacking:
        notes.append(f"enough timings of {name(lacking)}")
    peers = peers_of(ranks, sizes, order, world)
    if peers.problem:
        notes.append(peers.problem)
    table = table[:, enough]
    usable = usable_steps(table)
    if len(usable) < MIN_STEPS:
        reason = f"only {len(usable)} of {len(table)} steps are alike; at least {MIN_STEPS} are needed to compare ranks"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("timings of more steps",))
    nodes = tuple(timings.nodes.get(rank, "") for rank in ranks)
    numbers = {"": -1} | {node: number for number, node in enumerate(dict.fromkeys(filter(None, nodes)))}
    node_numbers = np.array([numbers[node] for node in nodes])
    steps = tuple(timings.steps[at] for at in usable)
    return Case(table[usable], ranks, nodes, node_numbers, steps, peers, tuple(notes), timings.derived)


def _table(rows: Sequence[array[float]]) -> Floats:
    table = np.array(rows, dtype=np.float64) if rows else np.empty((0, 0))
    table[~np.isfinite(table)] = np.nan
    return table


def in_lockstep(totals: Floats) -> bool:
    """Return whether the totals are of ranks that wait for each other: no rank gets ahead by more than a step."""
    complete = totals[:, np.isfinite(totals).all(axis=0)]
    if complete.shape[1] < 2 or not len(complete):
        return True
    sums = complete.sum(axis=0)
    return bool(sums.max() - sums.min() <= _LOCKSTEP_STEPS * middle(complete.ravel()))
