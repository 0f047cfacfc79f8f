"""Computes which ranks form a parallel group, from sizes such as `tp=2,pp=4,dp=4`, in Megatron's rank order.

A rank is a number written with one digit for each kind of parallelism, the first kind of the order changing fastest.
Experts are laid over the same ranks a second time (their own tensor size × expert × the rest), so neither `ep` nor
`etp` adds to the number of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.ranks import name

DENSE = ("tp", "cp", "dp", "pp")
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
WORDS = {"tp": "tensor", "cp": "context", "ep": "expert", "dp": "data", "pp": "pipeline"}
MAX_RANKS = 10_000_000

_BY_DESC = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "MODEL_PARALLEL_GROUP": "tp-pp",
    **{f"mesh_{kind}": kind for kind in WORDS},
}
"""The names of process groups in Megatron and in PyTorch's device meshes; of two groups of a kind the first counts."""
_SIZE = re.compile(r"(tp|cp|ep|etp|dp|pp)=([1-9]\d{0,5})")
_ORDER = re.compile(r"order=((?:tp|cp|ep|dp|pp)(?:-(?:tp|cp|ep|dp|pp)){0,4})")


class LayoutError(ValueError):
    """A layout that cannot be used; the message says why."""


@dataclass(frozen=True)
class ParallelGroup:
    """Ranks that communicate with each other for one purpose.

    Attributes:
        kind: `tp`, `cp`, `ep`, `dp`, `pp`, several of them joined by a dash, or a program's own word.
        ranks: The ranks in the group's own order: for a pipeline, from the first stage to the last.
    """

    kind: str
    ranks: tuple[int, ...]

    @property
    def description(self) -> str:
        """`pipeline group of ranks 0,2,4,6`, for sentences."""
        words = " and ".join(WORDS.get(part, part) for part in self.kind.split("-"))
        return f"{words} group of {name(self.ranks)}"


@dataclass(frozen=True)
class ParallelLayout:
    """Parallel sizes whose product is the world size, and the order in which they count ranks.

    Attributes:
        sizes: The size of every kind, 1 if it was not given.
        order: The kinds, from the one that changes fastest.
    """

    sizes: Mapping[str, int]
    order: tuple[str, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(self.sizes[kind] for kind in DENSE)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds with more than one member, in order."""
        return tuple(kind for kind in self.order if self.sizes[kind] > 1)

    def groups(self, *kinds: str) -> tuple[ParallelGroup, ...]:
        """Return all groups of ranks that differ in these kinds only; `groups("tp", "pp")` are the model's replicas."""
        sizes = dict(self.sizes)
        if "ep" in kinds:
            # Experts share the ranks of a pipeline stage; the rest of the stage is their own data parallelism.
            stage = sizes["tp"] * sizes["cp"] * sizes["dp"]
            sizes["tp"], sizes["cp"] = sizes["etp"], 1
            sizes["dp"] = stage // (sizes["etp"] * sizes["ep"])
        else:
            sizes["ep"] = 1
        strides, stride = {}, 1
        for kind in self.order:
            strides[kind] = stride
            stride *= sizes[kind]

        def offsets(inside: bool) -> list[int]:
            steps = [
                range(0, strides[kind] * sizes[kind], strides[kind])
                for kind in reversed(self.order)
                if (kind in kinds) is inside
            ]
            return [sum(parts) for parts in product(*steps)]

        members = offsets(True)
        label = "-".join(kind for kind in self.order if kind in kinds)
        return tuple(ParallelGroup(label, tuple(base + m for m in members)) for base in offsets(False))


def parse(text: str) -> tuple[dict[str, int], str]:
    """Read sizes and order from `tp=2,pp=4,dp=4`, with `order=tp-pp-dp` if the order is not Megatron's.

    Raises:
        LayoutError: the text is not of this form; the message says which part.
    """
    sizes: dict[str, int] = {}
    order = ""
    for part in text.replace(" ", "").split(","):
        if (found := _ORDER.fullmatch(part)) is not None and not order:
            order = found[1]
        elif (found := _SIZE.fullmatch(part)) is not None and found[1] not in sizes:
            sizes[found[1]] = int(found[2])
        else:
            raise LayoutError(f"layout: not understood: {part[:40]!r} (expected tp=2,pp=4,dp=4[,cp=,ep=][,order=…])")
    if not sizes:
        raise LayoutError(f"layout: no sizes in {text[:40]!r} (expected tp=2,pp=4,dp=4)")
    return sizes, order


def fit(sizes: Mapping[str, int], order: str, world_size: int) -> ParallelLayout:
    """Complete the sizes for so many ranks; `dp` is the rest if it is not given.

    Args:
        sizes: As `parse` gives them. `etp`, the experts' own tensor size, is `tp` if it is not given.
        order: `tp-cp-ep-dp-pp` or another order of the kinds that have more than one member; empty for Megatron's.
        world_size: Number of ranks; 0 if it is not known.

    Raises:
        LayoutError: the product of the sizes is not the number of ranks, or the order lacks a kind.
    """
    if strange := sorted(set(sizes) - {*WORDS, "etp"}):
        raise LayoutError(f"layout: {strange[0][:20]!r} is not a kind of parallelism (known: {', '.join(WORDS)})")
    full = dict.fromkeys(WORDS, 1) | {kind: int(size) for kind, size in sizes.items()}
    full.setdefault("etp", full["tp"])
    if any(size < 1 for size in full.values()):
        raise LayoutError("layout: a size below 1")
    given_sizes = ",".join(f"{kind}={size}" for kind, size in sizes.items())
    if "dp" not in sizes and world_size:
        rest = full["tp"] * full["cp"] * full["pp"]
        if world_size % rest:
            raise LayoutError(
                f"layout: {given_sizes} does not divide {world_size} ranks: each replica of the model takes {rest}"
            )
        full["dp"] = world_size // rest
    whole = prod(full[kind] for kind in DENSE)
    if whole > MAX_RANKS:
        raise LayoutError(f"layout: {given_sizes} makes {whole} ranks (at most {MAX_RANKS})")
    if world_size > whole:
        raise LayoutError(f"layout: {given_sizes} makes {whole} ranks; beyond it: {name(range(whole, world_size))}")
    if world_size and world_size != whole:
        raise LayoutError(f"layout: {given_sizes} makes {whole} ranks, but there are {world_size}")
    stage = full["tp"] * full["cp"] * full["dp"]
    if stage % (full["etp"] * full["ep"]):
        experts = f"etp={full['etp']} × ep={full['ep']}"
        raise LayoutError(f"layout: {experts} does not divide the {stage} ranks of a pipeline stage")
    given = tuple((order or DEFAULT_ORDER).split("-"))
    lacking = [kind for kind in WORDS if full[kind] > 1 and kind not in given]
    if lacking or len(set(given)) != len(given) or set(given) - set(WORDS):
        why = f"lacks {lacking[0]}" if lacking else "names a kind twice, or one that is not known"
        raise LayoutError(f"layout: the order {order[:40]} {why}")
    return ParallelLayout(full, (*given, *(kind for kind in WORDS if kind not in given)))


class Groups:
    """Parallel groups, asked by rank."""

    def __init__(self, groups: Iterable[ParallelGroup]) -> None:
        self.all = tuple(groups)
        self._kinds = tuple(dict.fromkeys(group.kind for group in self.all))
        self._of: dict[tuple[str, int], ParallelGroup] = {}
        for group in self.all:
            for rank in group.ranks:
                self._of.setdefault((group.kind, rank), group)

    def __bool__(self) -> bool:
        return bool(self.all)

    def of(self, kind: str, rank: int) -> ParallelGroup | None:
        """Return the group of this kind to which a rank belongs; None if it is not known."""
        return self._of.get((kind, rank))

    def shared(self, ranks: Iterable[int]) -> ParallelGroup | None:
        """Return the smallest group that holds all of these ranks; None if no group does."""
        wanted = set(ranks)
        if not wanted:
            return None
        around = (self.of(kind, min(wanted)) for kind in self._kinds)
        fitting = [g for g in around if g is not None and wanted <= set(g.ranks)]
        return min(fitting, key=lambda g: len(g.ranks), default=None)


def groups_of(layout: ParallelLayout) -> Groups:
    """Return all groups of a layout that are smaller than the world: of each kind, and of kinds taken together."""
    found: list[ParallelGroup] = []
    for count in range(1, len(layout.kinds) + 1):
        for kinds in combinations(layout.kinds, count):
            # Experts lie across the other kinds: they are only a group of their own here, and not part of combined
            # groups.
            if count > 1 and "ep" in kinds:
                continue
            found.extend(g for g in layout.groups(*kinds) if count == 1 or len(g.ranks) < layout.world_size)
    return Groups(found)


def known_groups(evidence: Evidence) -> tuple[Groups, str]:
    """Return the parallel groups of a job, and why its layout cannot be used (empty if it can, or if there is none).

    Flight-recorder dumps show the process groups that the program itself made, so they go before sizes that a person
    gave.
    """
    if recorded := _recorded(evidence):
        return recorded, ""
    if not evidence.layout:
        return Groups(()), ""
    try:
        return groups_of(fit(evidence.layout, evidence.layout_order, evidence.world_size)), ""
    except LayoutError as error:
        return Groups(()), str(error)


def _recorded(evidence: Evidence) -> Groups:
    made: dict[tuple[str, tuple[int, ...]], ParallelGroup] = {}
    for dump in evidence.recorder.values():
        for group in dump.groups.values():
            if 1 < len(group.ranks) < evidence.world_size:
                kind = _BY_DESC.get(group.desc, group.desc or group.name)
                made.setdefault((kind, group.ranks), ParallelGroup(kind, group.ranks))
    return Groups(made.values())
