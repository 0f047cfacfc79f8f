"""Finds ranks that something visibly holds, at any place of the program, for the vote on stacks."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.localize.evidence import Capture, RankCapture
from slurm_robust.localize.grades import Ground
from slurm_robust.localize.stacks.blocking import blocking
from slurm_robust.localize.stacks.frames import label, labels
from slurm_robust.localize.stacks.known_names import Kind, WaitsOn
from slurm_robust.localize.stacks.motion import QUIET_FLOOR_S, QUIET_SHARE
from slurm_robust.localize.stacks.process_tree import gil_holder, rank_place, rank_process

_AWAKE = frozenset({"S", "R"})
GIL_CAPTURES = 3
"""A thread with the GIL that uses a processor must be seen at one place in this many captures."""


def seen_held(rank: RankCapture) -> bool:
    """Return whether the rank is seen to be held at any place: stopped, dead, D state, a loader that hangs."""
    if _plainly_awake(rank):
        return False  # most of many thousands
    what = blocking(rank)
    of_node = what.infrastructure or what.by_loader or what.ground is Ground.SLOW_STORAGE
    return what.patience is not None and of_node


def _plainly_awake(rank: RankCapture) -> bool:
    """Return whether nothing speaks against its node: no process is in an odd state, and it waits for no loader."""
    if any(p.state not in _AWAKE or "fr" in p.wchan for p in rank.processes):  # freezers: do_freezer_trap, refrigerator
        return False
    return bool(rank.processes) and rank_place(rank).kind is not Kind.LOADER


def in_lock(rank: RankCapture) -> bool:
    """Return whether the training waits in a Python lock, and so not for its device, as ranks that spin do."""
    where = rank_place(rank)
    return where.kind is Kind.USER and where.wait is WaitsOn.LOCK and blocking(rank).patience is not None


def gone_for_good(captures: Sequence[Capture]) -> frozenset[int]:
    """Return ranks for which the last two captures reached the node, but found no process."""
    gone = [{r.rank for r in capture.ranks if not r.processes} for capture in captures[-2:]]
    return frozenset(set.intersection(*gone)) if len(gone) == 2 else frozenset()


def gil_held(captures: Sequence[Capture]) -> frozenset[int]:
    """Return ranks of which one side thread held the GIL in every capture, with the same stack.

    Two captures may meet a working thread twice at one place, but not if it used no processor in between. Among
    thousands of ranks some are always met so: a function in which other ranks have the GIL, too, does not count. This
    reads all threads of all ranks: call it once.
    """
    holders: dict[int, list[tuple[tuple[str, ...], float]]] = {}
    functions: dict[str, set[int]] = {}
    for capture in captures:
        for rank in capture.ranks:
            holder, process = gil_holder(rank), rank_process(rank)
            if holder is not None and process is not None:
                holders.setdefault(rank.rank, []).append((labels(holder.frames), process.cpu_s))
                functions.setdefault(label(holder.frames[-1], lines=False), set()).add(rank.rank)
    elapsed_s = captures[-1].at_s - captures[0].at_s if captures else 0.0
    found = {number for number, seen in holders.items() if _keeps(seen, len(captures), elapsed_s)}
    return frozenset().union(*(ranks & found for ranks in functions.values() if len(ranks & found) > len(ranks) / 2))


def _keeps(seen: Sequence[tuple[tuple[str, ...], float]], captures: int, elapsed_s: float) -> bool:
    """Return whether a thread was seen with the GIL in all captures (two or more), at one place, and not by chance."""
    if captures < 2 or len(seen) < captures or len({stack for stack, _ in seen}) > 1:
        return False
    used_s = seen[-1][1] - seen[0][1]
    return captures >= GIL_CAPTURES or 0 <= used_s <= max(QUIET_SHARE * elapsed_s, QUIET_FLOOR_S)
