"""Parallel groups of a job, in Megatron's rank order: tensor fastest, then context, data, and pipeline slowest."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Group:
    """Ranks that communicate: `kind` is what the program calls it, `name` is its own in the whole job."""

    name: str
    kind: str
    ranks: tuple[int, ...]
    number: int
    """Of its kind in every process: PyTorch counts groups in the order in which a process makes them."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel dimensions, and the nodes.

    Attributes:
        ep: Expert parallelism, within the data-parallel dimension; 1 without experts.
        per_node: Ranks a node.
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    per_node: int = 8
    _groups: dict[str, dict[int, Group]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def _of_kind(self, kind: str) -> dict[int, Group]:
        """Rank → its group of this kind; made when it is first asked for."""
        known = self._groups.get(kind)
        if known is not None:
            return known
        number, same = list(_SAME).index(kind), _SAME[kind]
        members: dict[tuple[int, ...], list[int]] = defaultdict(list)
        of = {
            "t": [rank % self.tp for rank in range(self.world)],
            "c": [rank // self.tp % self.cp for rank in range(self.world)],
            "d": [rank // (self.tp * self.cp) % self.dp for rank in range(self.world)],
            "p": [rank // (self.tp * self.cp * self.dp) for rank in range(self.world)],
        }
        of["e"] = [d // self.ep for d in of["d"]]
        of["m"] = [0 if p == self.pp - 1 else p for p in of["p"]]
        for rank, at in enumerate(zip(*(of[letter] for letter in same), strict=True)) if same else ():
            members[at].append(rank)
        if not same:
            members[()] = list(range(self.world))
        found = self._groups[kind] = {}
        for index, ranks in enumerate(members.values()):
            name = "0" if kind == "world" else str(number * 10_000 + index + 1)
            found.update(dict.fromkeys(ranks, Group(name, kind, tuple(ranks), number)))
        return found

    @cached_property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    def place(self, rank: int) -> tuple[int, int, int, int]:
        """Where a rank stands: tensor, context, data, pipeline."""
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        return tp, cp, dp, pp

    def at(self, tp: int, cp: int, dp: int, pp: int) -> int:
        """The rank at a place."""
        return tp + self.tp * (cp + self.cp * (dp + self.dp * pp))

    def group(self, kind: str, rank: int) -> Group:
        """The group of this kind that a rank is in."""
        return self._of_kind(kind)[rank]

    def groups_of(self, rank: int) -> list[Group]:
        """Every group that a rank is in."""
        return [self._of_kind(kind)[rank] for kind in _SAME]

    def all_groups(self) -> list[Group]:
        """Every group once."""
        groups = [group for kind in _SAME for group in self._of_kind(kind).values()]
        return list({id(group): group for group in groups}.values())

    def node(self, rank: int) -> str:
        """The node that a rank runs on."""
        return f"n{rank // self.per_node:04d}"

    def nodes(self, ranks: object) -> frozenset[str]:
        """The nodes of these ranks."""
        assert isinstance(ranks, (tuple, list, set, frozenset, range))
        return frozenset(self.node(rank) for rank in ranks)


_SAME: dict[str, str] = {
    "world": "",
    "dp": "tp",
    "tp": "cdp",
    "pp": "tcd",
    "mp": "cd",
    "ep": "tcep",
    "embedding": "tcdm",
}
"""Kind of group → what its members have in common: places in tensor, context, data, pipeline, block of experts, and m:
first and last stage share the word embedding, the stages between are alone."""
