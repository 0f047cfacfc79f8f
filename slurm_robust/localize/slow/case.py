"""What can be judged of the timings: ranks with enough steps, steps that are alike, and who may be compared."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.localize.ranks import name
from slurm_robust.localize.slow.effects import usable_steps
from slurm_robust.localize.slow.outliers import MIN_STEPS
from slurm_robust.localize.slow.peers import Peers, peers_of
from slurm_robust.localize.slow.robust_statistics import median
from slurm_robust.localize.slow.timings import Timings
from slurm_robust.model import Conclusion, Verdict

_ROW_SHARE = 0.5
"""A rank with fewer than this share of the steps of the one that told most is left out."""
_LOCKSTEP_STEPS = 1.5
"""Ranks that synchronise are never further apart than about a step."""


@dataclass(frozen=True)
class Case:
    """What is judged: usable ranks and steps, and who is whose peer.

    Attributes:
        rows: A row a usable step, a value a usable rank: its own work, seconds.
        ranks: Their numbers.
        steps: The usable steps' numbers.
    """

    rows: tuple[array[float], ...]
    ranks: tuple[int, ...]
    nodes: Mapping[int, str]
    steps: tuple[int, ...]
    peers: Peers
    notes: tuple[str, ...] = ()

    def node(self, at: int) -> str:
        """Node of a place in the table, empty where not told."""
        return self.nodes.get(self.ranks[at], "")


def make_case(timings: Timings, sizes: Mapping[str, int], order: str, world: int) -> Case | Verdict:
    """The case, or the verdict that there is none: too few ranks or steps, or only totals of ranks in lockstep."""
    notes: list[str] = []
    rows, wanted = timings.compute, "the time that each rank computes, apart from waiting (compute_s)"
    if not timings.has_compute:
        rows = timings.total
        if in_lockstep(rows):
            reason = "all ranks take the same time for a step, since they wait for each other: who makes them wait?"
            return Verdict(Conclusion.UNDETERMINED, reason, missing=(wanted,))
        notes.append(wanted + ": the totals differ between ranks, and were taken for it")
    counts = [sum(map(math.isfinite, column)) for column in zip(*rows, strict=True)]
    enough = [at for at, count in enumerate(counts) if count >= max(MIN_STEPS, _ROW_SHARE * max(counts))]
    if len(enough) < 2:
        few = f"{max(counts, default=0)} steps of {len(counts)} ranks"
        reason = f"too little to compare: {few} (at least {MIN_STEPS} steps of two ranks are needed)"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("timings of more steps",))
    lacking = sorted(set(range(world)) - {timings.ranks[at] for at in enough})
    if lacking:
        notes.append(f"enough timings of {name(lacking)}")
    if len(enough) < len(counts):
        rows = tuple(array("d", [row[at] for at in enough]) for row in rows)
    ranks = tuple(timings.ranks[at] for at in enough)
    peers = peers_of(ranks, sizes, order, world)
    if peers.problem:
        notes.append(peers.problem)
    usable = usable_steps(rows)
    if len(usable) < MIN_STEPS:
        reason = f"only {len(usable)} of {len(rows)} steps are alike: too few to compare (at least {MIN_STEPS})"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("timings of more steps",))
    kept = tuple(rows[at] for at in usable)
    return Case(kept, ranks, timings.nodes, tuple(timings.steps[at] for at in usable), peers, tuple(notes))


def in_lockstep(totals: Sequence[Sequence[float]]) -> bool:
    """Whether the totals are those of ranks that wait for each other: none ever gets ahead by more than a step."""
    complete = [row for row in zip(*totals, strict=True) if all(map(math.isfinite, row))]
    if len(complete) < 2:
        return True
    sums = [float(sum(row)) for row in complete]
    return max(sums) - min(sums) <= _LOCKSTEP_STEPS * median(v for row in complete for v in row)
