"""Says which ranks may be compared: ranks that have the same work by the program's own design.

There are two comparisons, and each finds what the other misses. *Role*: ranks of one pipeline stage and the same place
in their tensor, context and expert groups, across the replicas of the model: they run the same code on other data.
*Twins*: ranks of one tensor (and context) group: each works on a slice of the same data, so a long sequence slows all
alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_robust.localize.layout import LayoutError, ParallelLayout, fit
from slurm_robust.localize.slow.robust_statistics import Places


@dataclass(frozen=True)
class Peers:
    """The numbers of the groups in which each rank is compared, by the rank's place in the table.

    Attributes:
        role: Group of ranks with the same work on other data.
        twins: Group of ranks with the same data; None without a layout, or if ranks do not share data.
        slice_of: Place in the group of twins: a place may have usual costs of its own (reading data, logging).
        stage: Pipeline stage.
        replica: Replica of the model.
        known: A layout gave the groups; without a layout all ranks count as peers of each other.
        stages: Number of pipeline stages.
        problem: Why the given layout is not used; empty if it is.
    """

    role: Places
    twins: Places | None
    slice_of: Places
    stage: Places
    replica: Places
    known: bool = False
    stages: int = 1
    problem: str = ""


def peers_of(ranks: Sequence[int], sizes: Mapping[str, int], order: str, world_size: int) -> Peers:
    """Return the peers of these ranks; without a layout that fits, all ranks are peers of each other."""
    problem = ""
    if sizes:
        try:
            return _from_layout(np.array(ranks, dtype=np.intp), fit(sizes, order, world_size))
        except LayoutError as error:
            problem = str(error)
    same = np.zeros(len(ranks), dtype=np.intp)
    return Peers(same, None, same, same, same, problem=problem)


def _from_layout(ranks: Places, layout: ParallelLayout) -> Peers:
    place: dict[str, Places] = {}
    stride = 1
    for kind in layout.order:
        if kind != "ep":  # experts lie over the ranks a second time: they do not count
            place[kind] = ranks // stride % layout.sizes[kind]
            stride *= layout.sizes[kind]
    experts = layout.sizes["ep"]
    expert = np.zeros(layout.world_size, dtype=np.intp)
    if experts > 1:
        expert[np.array([group.ranks for group in layout.groups("ep")])] = np.arange(experts)
    tp, cp, dp, pp = (layout.sizes[kind] for kind in ("tp", "cp", "dp", "pp"))
    slices = (place["tp"] * cp + place["cp"]) * experts + expert[ranks]
    twins = (place["pp"] * dp + place["dp"]) * experts + expert[ranks]
    role = place["pp"] * (tp * cp * experts) + slices
    shares_data = tp * cp > 1
    return Peers(role, twins if shares_data else None, slices, place["pp"], place["dp"], known=True, stages=pp)


def count_independent(keys: Places) -> int:
    """Return how many comparisons within these groups are independent of each other."""
    return len(keys) - len(np.unique(keys))


def groups(keys: Places) -> list[Places]:
    """Return the places in the table that share a key: one matrix for each group size, with one row for each group."""
    order = np.argsort(keys, kind="stable")
    _, starts, sizes = np.unique(keys[order], return_index=True, return_counts=True)
    return [order[starts[sizes == size][:, None] + np.arange(size)] for size in np.unique(sizes)]
