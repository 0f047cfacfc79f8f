"""Says who may be compared with whom: ranks that have the same work by the program's own design.

Two comparisons, each blind to what the other sees. *Role*: ranks of one pipeline stage and the same place in their
tensor, context and expert groups, across the replicas of the model: the same code on other data. *Twins*: ranks of one
tensor (and context) group: the same data, each a slice of it, so that a long sequence slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_robust.localize.layout import LayoutError, ParallelLayout, fit
from slurm_robust.localize.slow.robust_statistics import Places


@dataclass(frozen=True)
class Peers:
    """For each rank, by its place in the table, the number of each group that it is compared in.

    Attributes:
        role: Same work on other data.
        twins: Same data; None without a layout, or where no ranks share data.
        slice_of: The place in the twins' group, for what that place always costs (reading data, logging).
        stage: Pipeline stage.
        replica: Which replica of the model.
        known: A layout gave the groups; without one, every rank counts as every other's peer.
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
    """The peers of these ranks; without a layout that fits, every rank is every other's peer."""
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
    """How many comparisons within these groups are independent of each other."""
    return len(keys) - len(np.unique(keys))


def groups(keys: Places) -> list[Places]:
    """Places in the table that share a key: one matrix for each size of group, with one row for each group."""
    order = np.argsort(keys, kind="stable")
    _, starts, sizes = np.unique(keys[order], return_index=True, return_counts=True)
    return [order[starts[sizes == size][:, None] + np.arange(size)] for size in np.unique(sizes)]
