"""Votes on the code in which all ranks wait: names the nodes of the parallel group in which the waiting ends.

Python stacks alone cannot show which member holds that group up, nor whether a machine or a link is at fault: members
that disagree on a shape look the same. So the nodes of the group are named together, with a low confidence. They are
never evicted on this vote alone, but only if the same failure comes again on them. Members that stand in different
operations of one group can never meet, which is the program's fault.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.core.text import joined, shortened
from slurm_robust.localize.evidence import Capture, Evidence
from slurm_robust.localize.layout import Groups, ParallelGroup, known_groups
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.frames import own_frames
from slurm_robust.localize.stacks.motion import BUSY_SHARE, moving
from slurm_robust.localize.stacks.process_tree import rank_frames, rank_place, rank_process
from slurm_robust.localize.votes.group_scopes import scope_of
from slurm_robust.localize.votes.wait_graph import MixedGroup, WaitGraph, WaitSink

CONFIDENCE_SINK = 0.5
"""Shared by the nodes of the group in which the waiting ends."""
CONFIDENCE_BESIDE = 0.1
"""Confidence in a node that only shares a larger group with the group's nodes."""
DOMINANT_SHARE = 0.5
"""A class with at least this share of the largest one's ranks is dominant too."""


@dataclass(frozen=True)
class OddRanks:
    """Ranks outside the dominant classes, and what they share.

    Attributes:
        group: The smallest parallel group that holds all these ranks; None if there is no such group.
        nodes: Nodes to exclude: the nodes of the group, or the odd ranks' own node if it is a single one.
    """

    ranks: tuple[int, ...]
    group: ParallelGroup | None
    nodes: tuple[str, ...]


def odd_ranks(capture: Capture, groups: Groups) -> OddRanks | None:
    """Compare the classes of stacks with the groups; None if all classes are dominant.

    ByteRobust's rule (SOSP 2025): large classes are healthy, and the smallest group that all other ranks share is
    suspected. The rule isolates fast and evicts more nodes than needed. It is wrong if there are many victims of
    several kinds, or if the program is at fault. So it does not name a suspect by itself, and its cost is part of the
    detail.
    """
    places = {r.rank: rank_place(r).label for r in capture.ranks}
    sizes = Counter(places.values())
    most = max(sizes.values(), default=0)
    odd = tuple(sorted(r for r, label in places.items() if sizes[label] < DOMINANT_SHARE * most))
    if not odd:
        return None
    node_of = {r.rank: r.node for r in capture.ranks}
    own, group = {node_of[rank] for rank in odd}, groups.shared(odd)
    shared = {node_of[rank] for rank in group.ranks if rank in node_of} if group is not None else set()
    return OddRanks(odd, group, tuple(sorted(own if len(own) == 1 else shared)))


def wait_graph(capture: Capture, groups: Groups) -> WaitGraph:
    """Return the graph of the waiting in one capture."""
    waiting = [rank for rank in capture.ranks if rank_place(rank).waits_for_peers]
    scopes = {rank.rank: scope_of(own_frames(rank_frames(rank) or ())) for rank in waiting}
    return WaitGraph(scopes, (r.rank for r in capture.ranks), groups)


def judge_groups(evidence: Evidence) -> Verdict | None:
    """Return a verdict if all ranks wait, and the waiting ends in one group or some ranks can never meet; else None."""
    groups, _ = known_groups(evidence)
    if len(evidence.captures) < 2 or not groups or len(evidence.captures[-1].ranks) < evidence.world_size:
        return None
    before, last = evidence.captures[-2:]
    if not _all_at_rest(before, last):
        return None
    earlier, graph = wait_graph(before, groups), wait_graph(last, groups)
    if lasting := [mixed for mixed in graph.mixed if mixed in earlier.mixed]:
        return _cannot_meet(lasting[0])
    sink = None if graph.conflict else _only_sink(last, graph)
    same = sink is not None and sink.one_operation and _only_sink(before, earlier) == sink
    return _named(last, sink, groups) if sink is not None and same else None


def _all_at_rest(before: Capture, last: Capture) -> bool:
    """Return whether all ranks wait for others and do not move, and their stacks show what they wait in."""
    if not all(rank_place(rank).waits_for_peers for rank in last.ranks) or _ahead_of_devices(before, last):
        return False
    return not moving((before, last), (r.rank for r in last.ranks))


def _ahead_of_devices(before: Capture, last: Capture) -> bool:
    """Return whether most of the waiting ranks use a processor: hosts that wait for their GPU at its next use.

    Their devices wait in an earlier operation, perhaps of another group, which the stacks do not show.
    """
    elapsed_s = last.at_s - before.at_s
    old = {r.rank: rank_process(r) for r in before.ranks}
    busy = 0
    for rank in last.ranks:
        was, now = old.get(rank.rank), rank_process(rank)
        if was is not None and now is not None and was.pid == now.pid and min(was.cpu_s, now.cpu_s) >= 0:
            busy += now.cpu_s - was.cpu_s > BUSY_SHARE * elapsed_s
    return busy > len(last.ranks) / 2


def _cannot_meet(mixed: MixedGroup) -> Verdict:
    what = f"members of the {mixed.group.description} wait in different operations"
    listed = joined((f"{name(who)} in {operation}" for operation, who in mixed.entered), most=3)
    reason = f"{what} ({listed}): the program's order of collectives, no node is at fault"
    missing = ("flight recorder: the number of each operation",)
    return Verdict(Conclusion.USER_CODE, reason, missing=missing)


def _only_sink(capture: Capture, graph: WaitGraph) -> WaitSink | None:
    """Return where all the waiting ends; several ends on the same nodes (pipelines side by side) count as one."""
    sinks = graph.sinks()
    ranks = tuple(sorted(rank for sink in sinks for rank in sink.ranks))
    node_of = {r.rank: r.node for r in capture.ranks}
    ends = {frozenset(node_of.get(rank, "") for rank in sink.ranks) for sink in sinks}
    if len(ends) != 1 or set(graph.unknown) & set(ranks):
        return None
    group = sinks[0].group if len(sinks) == 1 else None
    waiters = frozenset().union(*(sink.waiters for sink in sinks))
    return WaitSink(ranks, group, waiters, all(sink.one_operation for sink in sinks))


def _named(capture: Capture, sink: WaitSink, groups: Groups) -> Verdict | None:
    node_of = {r.rank: r.node for r in capture.ranks}
    nodes = sorted({node_of[rank] for rank in sink.ranks})
    if len(nodes) > len(set(node_of.values())) / 2:
        return None
    node_names = shortened(", ".join(nodes), 60)
    what = sink.group.description if sink.group is not None else name(sink.ranks)
    why = f"{len(sink.waiters)} ranks wait, directly or through others, for the {what}, which waits within itself"
    suspects = [
        Suspect(
            node, _ranks(sink.ranks, node, node_of), round(CONFIDENCE_SINK / len(nodes), 3), f"{node}: {why}", False
        )
        for node in nodes
    ]
    details = [f"excluding {node_names} is the smallest change that breaks up the {what}"] if len(nodes) > 1 else []
    odd = odd_ranks(capture, groups)
    if odd is not None and odd.group is not None and set(sink.ranks) < set(odd.group.ranks):
        # The rule of dominant stacks agrees, and sees more: its nodes are named, and left only if it comes again.
        beside = [node for node in odd.nodes if node not in nodes]
        shared = f"the stacks of {name(odd.ranks)} differ from most; these ranks share the {odd.group.description}"
        suspects += [
            Suspect(node, _ranks(odd.group.ranks, node, node_of), CONFIDENCE_BESIDE, f"{node}: {shared}", False)
            for node in beside
        ]
        if beside:
            details.append(f"{shared}: excluding all of it costs {len(beside)} more nodes")
    missing = ("flight recorder or NCCL RAS: which rank of them", f"pairwise tests of {node_names}")
    return Verdict(Conclusion.CULPRIT, why, tuple(suspects), missing=missing, detail="; ".join(details))


def _ranks(ranks: tuple[int, ...], node: str, node_of: dict[int, str]) -> tuple[int, ...]:
    return tuple(rank for rank in ranks if node_of.get(rank) == node)
