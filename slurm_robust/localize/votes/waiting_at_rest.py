"""Tells ranks that wait at rest in a collective from ranks that were captured at a moment of a healthy step.

Even without a step the two differ: a rank that trains sends data, or its host uses a processor.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from slurm_robust.localize.evidence import Capture, RankCapture
from slurm_robust.localize.stacks.motion import QUIET_FLOOR_S, QUIET_SHARE, Motion, compare, traffic_bytes_per_s
from slurm_robust.localize.stacks.process_tree import rank_place, rank_process
from slurm_robust.localize.votes.nobody_works import TRAFFIC_BYTES_PER_S


def with_traffic(captures: Sequence[Capture], ranks: Collection[int]) -> list[int]:
    """Return the ranks among these that sent or received data between the last two captures."""
    pairs = _pairs(*captures[-2:], ranks=ranks) if len(captures) > 1 else {}
    elapsed_s = captures[-1].at_s - captures[-2].at_s if pairs else 0.0
    return sorted(rank for rank, (before, after) in pairs.items() if _sends(before, after, elapsed_s))


def resting_s(captures: Sequence[Capture], ranks: Collection[int]) -> float:
    """Return for how long, up to the last capture, all these ranks have waited in a collective without any work."""
    if not captures or not ranks:
        return 0.0
    began_s = captures[-1].at_s
    for before, after in reversed(tuple(pairwise(captures))):
        pairs = _pairs(before, after, ranks=ranks)
        elapsed_s = after.at_s - before.at_s
        if len(pairs) < len(ranks) or not all(_rests(old, new, elapsed_s) for old, new in pairs.values()):
            break
        began_s = before.at_s
    return captures[-1].at_s - began_s


def _pairs(before: Capture, after: Capture, *, ranks: Collection[int]) -> dict[int, tuple[RankCapture, RankCapture]]:
    old = {rank.rank: rank for rank in before.ranks if rank.rank in ranks}
    return {rank.rank: (old[rank.rank], rank) for rank in after.ranks if rank.rank in old}


def _sends(before: RankCapture, after: RankCapture, elapsed_s: float) -> bool:
    """Return whether data is on its way; False if the traffic is not known."""
    return (traffic_bytes_per_s(before, after, elapsed_s) or 0.0) >= TRAFFIC_BYTES_PER_S


def _rests(before: RankCapture, after: RankCapture, elapsed_s: float) -> bool:
    """Return whether both captures show the rank in a collective, without data sent or a processor used in between.

    A host that spins for its device does not rest here: a host that launches kernels looks the same.
    """
    ours, theirs = rank_process(before), rank_process(after)
    if ours is None or theirs is None or min(ours.cpu_s, theirs.cpu_s) < 0 or elapsed_s <= 0:
        return False
    moved = compare(before, after, elapsed_s)
    quiet = theirs.cpu_s - ours.cpu_s <= max(QUIET_SHARE * elapsed_s, QUIET_FLOOR_S)
    in_collective = rank_place(before).waits_for_peers and rank_place(after).waits_for_peers
    return quiet and in_collective and moved.motion is not Motion.MOVING and not _sends(before, after, elapsed_s)
