"""Who may be compared with whom: ranks that have the same work by the program's own design.

Two comparisons, each blind to what the other sees. *Role*: ranks of one pipeline stage and the same place in their
tensor, context and expert groups, across the replicas of the model: the same code on other data. *Twins*: ranks of one
tensor (and context) group: the same data, each a slice of it, so that a long sequence strikes them alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_robust.localize.layout import Layout, LayoutError, fit

Key = tuple[int, ...]


@dataclass(frozen=True)
class Peers:
    """For each rank, by its place in the table, the groups that it is compared in.

    Attributes:
        role: Same work on other data.
        twins: Same data; None where no layout tells, or nobody shares data.
        slice_of: The place in the twins' group, for what that place always costs (reading data, logging).
        stage: Pipeline stage.
        replica: Which replica of the model.
        known: A layout told it; else everybody is taken for everybody's peer.
    """

    role: tuple[Key, ...]
    twins: tuple[Key, ...] | None = None
    slice_of: tuple[Key, ...] = ()
    stage: tuple[int, ...] = ()
    replica: tuple[int, ...] = ()
    known: bool = False
    stages: int = 1
    problem: str = ""
    last_stage: int = field(default=0)


def peers_of(ranks: tuple[int, ...], sizes: Mapping[str, int], order: str, world_size: int) -> Peers:
    """The peers of these ranks; where there is no layout, or none that fits, everybody of everybody."""
    problem = ""
    if sizes:
        try:
            return _laid_out(ranks, fit(sizes, order, world_size))
        except LayoutError as error:
            problem = str(error)
    same = ((),) * len(ranks)
    return Peers(same, problem=problem)


def _laid_out(ranks: tuple[int, ...], layout: Layout) -> Peers:
    strides, stride = {}, 1
    for kind in layout.order:
        strides[kind] = stride
        # Experts lie over the ranks a second time: they do not count.
        stride *= 1 if kind == "ep" else layout.sizes[kind]
    expert: dict[int, int] = {}
    if layout.sizes["ep"] > 1:
        for group in layout.groups("ep"):
            expert.update({rank: place for place, rank in enumerate(group.ranks)})

    def place(rank: int, kind: str) -> int:
        return rank // strides[kind] % layout.sizes[kind]

    role, twins, slices, stage, replica = [], [], [], [], []
    for rank in ranks:
        tp, cp, dp, pp = (place(rank, kind) for kind in ("tp", "cp", "dp", "pp"))
        ep = expert.get(rank, 0)
        role.append((pp, tp, cp, ep))
        twins.append((pp, dp, ep))
        slices.append((tp, cp, ep))
        stage.append(pp)
        replica.append(dp)
    shares_data = layout.sizes["tp"] * layout.sizes["cp"] > 1
    stages = layout.sizes["pp"]
    return Peers(
        tuple(role),
        tuple(twins) if shares_data else None,
        tuple(slices),
        tuple(stage),
        tuple(replica),
        known=True,
        stages=stages,
        last_stage=stages - 1,
    )


def free(keys: Iterable[Key]) -> int:
    """How many comparisons within these groups are independent of each other."""
    return sum(len(group) - 1 for group in groups(keys))


def groups(keys: Iterable[Key]) -> list[list[int]]:
    """Places in the table that share a key."""
    found: dict[Key, list[int]] = {}
    for at, key in enumerate(keys):
        found.setdefault(key, []).append(at)
    return list(found.values())
