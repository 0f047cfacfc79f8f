"""Ranks that do the same: of replicas that nothing tells apart only one is simulated, and stands for all.

Data-parallel replicas meet only in the groups `dp` and `world`, and time is the same for all of them; so replicas in
which the fault strikes the same places (or none) come to stand alike. What is exact about it is tested: reduced and
whole worlds give the same evidence.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from campaign.layout import Layout

MEETING = frozenset({"dp", "world"})
"""Kinds of groups in which replicas meet."""


@dataclass(frozen=True)
class Cast:
    """Who is simulated, and for whom.

    Attributes:
        stands_for: Rank → the rank that is simulated for it, itself where it is.
    """

    layout: Layout
    stands_for: tuple[int, ...]
    acting: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "acting", tuple(sorted(set(self.stands_for))))

    def shift(self, rank: int) -> int:
        """What to add to the ranks of its actor's own replica to have those of its own."""
        return rank - self.stands_for[rank]


def everyone(layout: Layout) -> Cast:
    """All ranks, each for itself."""
    return Cast(layout, tuple(range(layout.world)))


def reduced(layout: Layout, struck: Collection[int], *, apart: bool) -> Cast:
    """One replica of each sort, by the places in it that the fault strikes.

    With `apart`, each replica that is struck is simulated: where its nodes matter, or the moment in which it is struck.
    """
    sorts: dict[int, set[tuple[int, int, int, int]]] = {}
    for rank in struck:
        tp, cp, dp, pp = layout.place(rank)
        sorts.setdefault(dp // layout.ep, set()).add((tp, cp, dp % layout.ep, pp))
    first: dict[object, int] = {}
    block_for = []
    for block in range(layout.dp // layout.ep):
        places = frozenset(sorts.get(block, ()))
        # The first is not like the others: it is the root of broadcasts, and some programs let it do more.
        sort = (block == 0, places, block if apart and places else -1)
        block_for.append(first.setdefault(sort, block))
    row = layout.tp * layout.cp
    stands_for = []
    for rank in range(layout.world):
        block = layout.place(rank)[2] // layout.ep
        stands_for.append(rank + (block_for[block] - block) * layout.ep * row)
    return Cast(layout, tuple(stands_for))
