"""Writes and reads sets of ranks as people write them: `0-2,5`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MAX_RANKS = 1_048_576
_ALWAYS_BELIEVED = 16384
_SPARSE = 64
"""Of a large job, at least one rank in so many is known: a lone number far above the others is a stray file."""


def fold(ranks: Iterable[int]) -> str:
    """`[5, 0, 1, 2]` → `0-2,5`; nothing → an empty text. Rank -1, which stands for none in particular, is left out."""
    runs: list[str] = []
    # Plain variables: there are 100,000 ranks, and several of these lists a verdict.
    first = last = -2
    for rank in sorted({rank for rank in ranks if rank >= 0}):
        if rank == last + 1:
            last = rank
            continue
        if last >= 0:
            runs.append(f"{first}-{last}" if last > first else str(first))
        first = last = rank
    if last >= 0:
        runs.append(f"{first}-{last}" if last > first else str(first))
    return ",".join(runs)


def unfold(text: str) -> tuple[int, ...]:
    """`0-2,5` → `(0, 1, 2, 5)`.

    Raises:
        ValueError: not a set of ranks; says which part.
    """
    ranks: set[int] = set()
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"not a rank or a range of ranks: {part[:40]!r} (expected 0-2,5)")
        low = int(match[1])
        high = int(match[2]) if match[2] else low
        if high < low or high - low + len(ranks) > _MAX_RANKS:
            raise ValueError(f"not a range of ranks: {part[:40]!r}")
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))


def name(ranks: Iterable[int]) -> str:
    """`rank 5` or `ranks 0-2,5`, for sentences; rank -1 stands for all ranks, where no single one is known."""
    members = sorted(set(ranks))
    if members == [-1]:
        return "the training step"
    return f"rank {members[0]}" if len(members) == 1 else f"ranks {fold(members)}"


def strays(ranks: Iterable[int], world_size: int = 0) -> tuple[int, ...]:
    """Ranks that cannot belong to the job of the others: a name with a wrong number would make a world of millions.

    Args:
        ranks: All that something is known of.
        world_size: Number of ranks as a person gave it, 0 if nobody did: whatever it holds is believed.
    """
    known = sorted(set(ranks))
    found: list[int] = []
    while known and known[-1] >= max(world_size, _ALWAYS_BELIEVED, _SPARSE * len(known)):
        found.append(known.pop())
    return tuple(reversed(found))
