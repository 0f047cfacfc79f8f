"""Writes and reads sets of ranks in the form that people use: `0-2,5`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MAX_RANKS = 1_048_576
_ALWAYS_BELIEVED = 16384
_SPARSE = 64
"""A rank number that is far above the number of known ranks, by this factor, is taken for a stray file."""


def fold(ranks: Iterable[int]) -> str:
    """Return a set of ranks as text: `[5, 0, 1, 2]` → `0-2,5`; no rank → an empty text. Rank -1 is left out."""
    runs: list[str] = []
    # Plain variables, for speed: there are 100,000 ranks, and a verdict has several of these lists.
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
    """Return the ranks of a text: `0-2,5` → `(0, 1, 2, 5)`.

    Raises:
        ValueError: the text is not a set of ranks; the message says which part.
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
    """Return `rank 5` or `ranks 0-2,5`, for sentences; rank -1 stands for all ranks, if no single rank is known."""
    members = sorted(set(ranks))
    if members == [-1]:
        return "the training step"
    return f"rank {members[0]}" if len(members) == 1 else f"ranks {fold(members)}"


def strays(ranks: Iterable[int], world_size: int = 0) -> tuple[int, ...]:
    """Return ranks that cannot belong to the job of the others: a wrong number would make a world of millions of ranks.

    Args:
        ranks: All ranks of which anything is known.
        world_size: Number of ranks as a person gave it: all ranks below it are believed. 0 if it was not given.
    """
    known = sorted(set(ranks))
    found: list[int] = []
    while known and known[-1] >= max(world_size, _ALWAYS_BELIEVED, _SPARSE * len(known)):
        found.append(known.pop())
    return tuple(reversed(found))
