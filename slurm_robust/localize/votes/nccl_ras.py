"""Votes on the answers of NCCL's RAS service: names ranks that do not answer, or launched less than their peers.

The service's thread needs neither Python nor the GPU: a process that does not answer is stopped, dead or cut off. The
counts of operations show which rank was absent when its peers went ahead, as the flight recorder does, but with less
detail: they only count if two answers, some seconds apart, show the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.localize.ranks import name
from slurm_robust.localize.ras import CommunicatorMember, Lag, RasView

CONFIDENCE_DEAD = 0.9
CONFIDENCE_SILENT = 0.8
CONFIDENCE_BEHIND = 0.75
"""Hand-set: below the flight recorder's, which knows the operation."""
APART_S = 2.0
"""Two answers that are closer in time do not show whether anything moved."""
MAX_SUSPECT_SHARE = 0.5


def judge_ras(
    views: Sequence[RasView], pids: Mapping[int, tuple[int, ...]], rank_nodes: Mapping[int, str]
) -> Verdict | None:
    """Return the verdict from NCCL's own view; None if it shows nothing wrong, or nothing that lasts.

    Args:
        views: The answers, oldest first.
        pids: Process id → the ranks that have it (several ranks on several nodes).
        rank_nodes: Rank → its node.
    """
    if not views:
        return None
    find = _Finder(pids, len(rank_nodes))
    last = views[-1]
    before = next((v for v in reversed(views) if last.at_s - v.at_s >= APART_S), None)
    leads = _silent(last, before, find) or _behind(last, before, find)
    return _named(leads, rank_nodes) if leads else None


def unnamed_laggards(views: Sequence[RasView]) -> str:
    """Return a sentence on ranks that NCCL only counts as behind, in two answers; empty if no such rank is unnamed."""
    if not views:
        return ""
    last = views[-1]
    before = next((v for v in reversed(views) if last.at_s - v.at_s >= APART_S), None)
    lasting = () if before is None else before.lags
    for lag in last.lags:
        if not lag.whole and lag in lasting:
            listed = f"names {len(lag.behind)} of them" if lag.behind else "names none of them"
            what = lag.operation or "an operation"
            where = f"communicator {lag.communicator[:32]} ({lag.size} ranks)"
            return f"NCCL counts ranks behind their peers in {what} of {where}, and {listed}"
    return ""


class _Finder:
    """Our ranks for NCCL's members."""

    def __init__(self, pids: Mapping[int, tuple[int, ...]], world: int) -> None:
        self._pids, self.world = pids, world

    def ahead(self, lag: Lag) -> set[int | None]:
        """Return the ranks that launched the operation most often: they wait for the ranks that are behind."""
        if lag.size == self.world:
            return {*range(self.world)} - {who.rank for who, _ in lag.behind}
        return {self.rank(who, lag.size) for who in lag.ahead}

    def rank(self, who: CommunicatorMember, size: int) -> int | None:
        """Return its number in the communicator of all ranks; else the only rank with its process id; else None.

        If the number is impossible in the communicator of all ranks, the answer is garbled, and the result is None.
        """
        if size == self.world:
            return who.rank if 0 <= who.rank < size else None
        ranks = self._pids.get(who.pid, ())
        return ranks[0] if len(ranks) == 1 else None


_Lead = tuple[float, str]


def _silent(last: RasView, before: RasView | None, find: _Finder) -> dict[int, _Lead]:
    """Return ranks whose process did not answer twice, or that NCCL has given up."""
    earlier = {(who.host, who.pid) for who, _, _ in before.silent} if before is not None else set()
    leads: dict[int, _Lead] = {}
    for who, size, dead in last.silent:
        rank = find.rank(who, size)
        if rank is None or not (dead or (who.host, who.pid) in earlier):
            continue
        confidence = CONFIDENCE_DEAD if dead else CONFIDENCE_SILENT
        what = f"NCCL considers its process {who.pid} dead" if dead else f"NCCL cannot reach its process {who.pid}"
        leads[rank] = max(leads.get(rank, (0.0, "")), (confidence, what))
    return leads


def _behind(last: RasView, before: RasView | None, find: _Finder) -> dict[int, _Lead]:
    """Return ranks that are waited for, do not wait themselves, and did not move between the two answers."""
    if before is None or not last.lags or not _all_named(last.lags, find):
        return {}
    earlier = {(lag.communicator, lag.operation): lag for lag in before.lags}
    if any(earlier.get((lag.communicator, lag.operation)) != lag for lag in last.lags):
        return {}  # something moves
    late: dict[int, _Lead] = {}
    waiting: set[int | None] = set()
    for lag in last.lags:
        least = min(count for _, count in lag.behind)
        waiting |= find.ahead(lag)
        for who, count in lag.behind:
            rank = find.rank(who, lag.size)
            if rank is None:
                return {}
            if count > least:
                waiting.add(rank)
            else:
                late[rank] = (CONFIDENCE_BEHIND, _counts(lag, count))
    return {rank: lead for rank, lead in late.items() if rank not in waiting}


def _all_named(lags: Sequence[Lag], find: _Finder) -> bool:
    """Return whether all ranks that are behind are named and, if several operations lag, all ranks that are ahead."""
    if not all(lag.whole for lag in lags):
        return False
    return len(lags) == 1 or all(lag.size == find.world or len(lag.ahead) + len(lag.behind) == lag.size for lag in lags)


def _counts(lag: Lag, count: int) -> str:
    what = lag.operation or "operation"
    return f"it launched {what} {count} times, {lag.size - len(lag.behind)} peers {lag.most} times"


def _named(leads: Mapping[int, _Lead], rank_nodes: Mapping[int, str]) -> Verdict:
    by_node: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(leads):
        by_node[rank_nodes.get(rank, "")].append(rank)
    nodes = set(rank_nodes.values())
    if len(nodes) > 1 and len(by_node) > MAX_SUSPECT_SHARE * len(nodes):
        reason = f"NCCL shows {name(leads)} behind or silent, on {len(by_node)} of {len(nodes)} nodes"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("what those ranks share: network, storage, input",))
    suspects = []
    for node, ranks in by_node.items():
        confidence, what = max(leads[rank] for rank in ranks)
        where = f"{name(ranks)} on {node}" if node else name(ranks)
        suspects.append(Suspect(node, tuple(ranks), confidence, f"{where}: {what}"))
    suspects.sort(key=lambda s: -s.confidence)
    return Verdict(Conclusion.CULPRIT, joined(s.why for s in suspects), tuple(suspects))
