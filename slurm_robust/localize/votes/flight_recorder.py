"""Votes on PyTorch's flight-recorder dumps: names ranks that others wait for and that do not wait themselves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.core.text import joined, shortened
from slurm_robust.localize.ranks import name
from slurm_robust.localize.recorder.align import Alignment, Hold, Mismatch, align
from slurm_robust.localize.recorder.dump import Operation, RankDump

CONFIDENCE_STUCK = 0.9
"""Confidence in a rank whose own device never began an operation that its peers' devices began."""
CONFIDENCE_LEFT_BEHIND = 0.6
"""Confidence in a rank whose peers completed what is open on its device: the device or a link holds the operation."""
CONFIDENCE_ABSENT = 0.9
"""Confidence in a rank that is waited for and does not wait; stacks tell whether its node or the program holds it."""
CONFIDENCE_SHARED = 0.8
"""Confidence in the only node that all operations have in common which all ranks joined and no rank completed."""
MAX_SUSPECT_SHARE = 0.5
"""If more than this share of the nodes is suspected, a cause that they share is at fault, not each of them."""


@dataclass(frozen=True)
class _Lead:
    rank: int
    confidence: float
    what: str
    detail: str
    order_s: float
    left_behind: bool = False
    """Whether other ranks have completed the operation that it holds: then a link may be at fault, too."""


def judge_dumps(dumps: Sequence[RankDump], rank_nodes: Mapping[int, str]) -> Verdict | None:
    """Return who holds all others, as far as the recorders know; None if nothing is pending anywhere.

    A rank that is not in `rank_nodes` is suspected without a node. A rank that is only left behind in an operation that
    its peers completed is named without `infrastructure`: the link to any peer may be broken.
    """
    if not dumps or not any(d.pending for d in dumps):
        return None
    seen = align(dumps)
    missing = (f"flight-recorder dumps of {name(seen.undumped)}",) if seen.undumped else ()
    if seen.mismatches:
        return _code_fault(seen.mismatches, missing)
    held, shared = _stuck(seen, dumps, rank_nodes)
    leads = [*held, *_sinks(seen, dumps)]
    if not leads and shared:
        return _one_question(shared, rank_nodes, missing)
    if not leads:
        return _shared_node(seen, rank_nodes, missing) or _nobody(seen, rank_nodes, missing)
    nodes = {rank_nodes.get(lead.rank, f"?{lead.rank}") for lead in leads}
    known = {rank_nodes.get(d.rank, f"?{d.rank}") for d in dumps} | nodes
    if len(known) > 2 and len(nodes) > MAX_SUSPECT_SHARE * len(known):
        who = name(lead.rank for lead in leads)
        reason = f"{who} hold up all others, on {len(nodes)} of {len(known)} nodes: no single node explains it"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=(*missing, "what those ranks share: storage, input"))
    suspects = tuple(_suspects(leads, rank_nodes))
    return Verdict(Conclusion.CULPRIT, joined(s.why for s in suspects), suspects, missing=missing)


def _stuck(
    seen: Alignment, dumps: Sequence[RankDump], rank_nodes: Mapping[int, str]
) -> tuple[list[_Lead], list[_Lead]]:
    """Return ranks whose own device holds an operation that their peers' devices completed, or began.

    If several nodes hold one operation, or both ends of a pair hold each other's, one link or one device is at fault,
    and not each of these nodes: such ranks are in the second list.
    """
    listed = [(rank, op, peers, True) for rank, (op, peers) in seen.stuck.items()]
    listed += [(rank, op, peers, False) for rank, (op, peers) in seen.unstarted.items()]
    last = {d.rank: d.last_at_s for d in dumps}
    nodes: dict[tuple[object, ...], set[str]] = defaultdict(set)
    alone: list[_Lead] = []
    shared: list[_Lead] = []
    for rank, op, _, _ in listed:
        nodes[_held_by_all(rank, op)].add(rank_nodes.get(rank, ""))
    for rank, op, peers, left in listed:
        what, done = ("has not completed", "completed it") if left else ("never began", "began it")
        held = f"its device {what} {op.name} {op.seq} of {_group(dumps, rank, op.group)}"
        confidence = CONFIDENCE_LEFT_BEHIND if left else CONFIDENCE_STUCK
        lead = _Lead(rank, confidence, held, f"{name(peers)} {done}", last[rank], left)
        (shared if len(nodes[_held_by_all(rank, op)] - {""}) > 1 else alone).append(lead)
    return alone, shared


def _held_by_all(rank: int, op: Operation) -> tuple[object, ...]:
    """Return a key that is equal for equal held operations: a collective's number, or the two ends of a pair."""
    return (op.group, min(rank, op.peer), max(rank, op.peer)) if op.p2p else (op.group, op.seq)


def _one_question(shared: Sequence[_Lead], rank_nodes: Mapping[int, str], missing: tuple[str, ...]) -> Verdict:
    nodes = sorted({rank_nodes.get(lead.rank, "") for lead in shared} - {""})
    node_names = shortened(", ".join(nodes), 60)
    held = shared[0].what.removeprefix("its device ")
    reason = f"{name(lead.rank for lead in shared)} on {len(nodes)} nodes: one device or link among them {held}"
    wanted = (*missing, f"NIC counters, pairwise tests of {node_names}")
    return Verdict(Conclusion.UNDETERMINED, reason, missing=wanted, detail=shared[0].detail)


def _sinks(seen: Alignment, dumps: Sequence[RankDump]) -> list[_Lead]:
    """Return ranks that are waited for and have no open operation themselves."""
    by_rank = {d.rank: d for d in dumps}
    first: dict[int, Hold] = {}
    # A collective tells more than a pair does, and an earlier operation tells more than a later one.
    for hold in sorted(seen.holds, key=lambda h: (h.op.p2p, h.op.order)):
        for rank in seen.idle.intersection(hold.absent):
            first.setdefault(rank, hold)
    leads = []
    for rank, hold in first.items():
        what = f"never joined {hold.op.name} {hold.op.seq} of {_group(dumps, hold.waiters[0], hold.op.group)}"
        waiters = f"{name(hold.waiters)} wait for it there"
        leads.append(_Lead(rank, CONFIDENCE_ABSENT, what, waiters, by_rank[rank].last_at_s))
    return leads


def _shared_node(seen: Alignment, rank_nodes: Mapping[int, str], missing: tuple[str, ...]) -> Verdict | None:
    """Return a verdict if all operations that all joined and no rank completed have one node in common."""
    if not seen.closed or seen.undumped:
        return None
    stuck = (*seen.closed, *seen.running)
    around = [{rank_nodes.get(rank, "") for rank in group.ranks} for group, _ in stuck]
    shared = set.intersection(*around)
    if len(shared) != 1 or "" in shared or len(set(rank_nodes.values())) < 2:
        return None
    (node,) = shared
    group, op = seen.closed[0]
    what = f"{len(around)} operations" if len(around) > 1 else f"{op.name} {op.seq} of {group.desc}"
    only = "the only node they share" if any(len(nodes) > 1 for nodes in around) else "the only node"
    why = f"{node}: all ranks joined {what} and none completed; this is {only}"
    ranks = tuple(sorted({r for group, _ in stuck for r in group.ranks if rank_nodes.get(r) == node}))
    suspect = Suspect(node, ranks, CONFIDENCE_SHARED, why)
    wanted = (*missing, "NCCL RAS, NIC counters: the link, or one device")
    return Verdict(Conclusion.CULPRIT, why, (suspect,), missing=wanted)


def where_waiting_ends(dumps: Sequence[RankDump], rank_nodes: Mapping[int, str]) -> frozenset[str]:
    """Return the nodes of the operations to which all waiting leads, if they are few; else empty.

    With groups inside groups (shards inside replicas), a broken link stops one group, and its members keep all other
    groups waiting. The dumps do not show which link or device of the group is broken.
    """
    return _ends(align(dumps), rank_nodes)


def _ends(seen: Alignment, rank_nodes: Mapping[int, str]) -> frozenset[str]:
    inside = {rank for group, _ in seen.closed for rank in group.ranks}
    waiters = {rank for hold in seen.holds for rank in hold.waiters} - inside
    nodes = frozenset(rank_nodes.get(rank, "") for rank in inside)
    few = len(nodes) <= MAX_SUSPECT_SHARE * len(set(rank_nodes.values()))
    ends = bool(waiters) and not seen.undumped and waiters <= _leading_to(inside, seen.holds)
    return nodes if ends and few and "" not in nodes else frozenset()


def _leading_to(ends: set[int], holds: Sequence[Hold]) -> set[int]:
    """Return the ranks that wait for these ranks, directly or through others."""
    before: dict[int, set[int]] = defaultdict(set)
    for hold in holds:
        for rank in (*hold.absent, *hold.behind):
            before[rank].update(hold.waiters)
    found: set[int] = set()
    todo = list(ends)
    while todo:
        new = before.get(todo.pop(), set()) - found
        found |= new
        todo.extend(new)
    return found


def _group(dumps: Sequence[RankDump], member: int, group: str) -> str:
    """Return the program's name for the group, and its members."""
    found = next((dump.groups[group] for dump in dumps if dump.rank == member and group in dump.groups), None)
    return f"group {group}" if found is None else f"{found.desc or 'group'} ({name(found.ranks)})"


def _suspects(leads: Iterable[_Lead], rank_nodes: Mapping[int, str]) -> list[Suspect]:
    """Return one suspect for each node, or each rank if its node is unknown; the rank that stopped first is first."""
    at: dict[str, list[_Lead]] = defaultdict(list)
    for lead in leads:
        at[rank_nodes.get(lead.rank, f"?{lead.rank}")].append(lead)
    ordered = sorted(at.items(), key=lambda item: (-max(x.confidence for x in item[1]), _first(item[1]), item[0]))
    share = 1.0 if len(ordered) == 1 else 0.9
    suspects = []
    for node, here in ordered:
        surest = max(here, key=lambda lead: (lead.confidence, -lead.rank))
        ranks = tuple(sorted(lead.rank for lead in here))
        known = "" if node.startswith("?") else node
        where = f"{name(ranks)} on {known}" if known else name(ranks)
        confidence, infrastructure = round(surest.confidence * share, 3), not surest.left_behind
        suspects.append(Suspect(known, ranks, confidence, f"{where}: {surest.what}", infrastructure, surest.detail))
    return suspects


def _first(leads: Iterable[_Lead]) -> float:
    return min((lead.order_s for lead in leads if lead.order_s > 0), default=0.0)


def _code_fault(mismatches: Sequence[Mismatch], missing: tuple[str, ...]) -> Verdict:
    first = mismatches[0]
    listed = joined((f"{name(who)}: {what}" for what, who in first.entered), most=3)
    group = f"{first.group.desc or 'group ' + first.group.name} ({name(first.group.ranks)})"
    what = f"ranks entered different operations as number {first.seq} of {group}"
    reason = f"{what}: order or shapes differ in the program"
    return Verdict(Conclusion.USER_CODE, reason, missing=missing, detail=listed)


def _nobody(seen: Alignment, rank_nodes: Mapping[int, str], missing: tuple[str, ...]) -> Verdict:
    ends = shortened(", ".join(sorted(_ends(seen, rank_nodes))), 60)
    wanted = (*missing, f"NCCL RAS, NIC counters, pairwise tests of {ends or 'the nodes'}")
    if seen.closed:
        group, op = seen.closed[0]
        reason = (
            f"{name(group.ranks)} all joined {op.name} {op.seq} of {group.desc or 'group ' + group.name} "
            "and none completed it: one link or device among them is at fault"
        )
        detail = f"all other ranks wait, directly or through others, for {ends}" if ends else ""
        return Verdict(Conclusion.UNDETERMINED, reason, missing=wanted, detail=detail)
    waits: Counter[int] = Counter()
    for hold in seen.holds:
        waits.update(dict.fromkeys((*hold.absent, *hold.undumped, *hold.behind), len(hold.waiters)))
    listed = joined(f"{count} wait for {name([rank])}" for rank, count in waits.most_common(3))
    reason = "every rank that others wait for waits for another rank itself"
    if unknown := {rank for hold in seen.holds for rank in hold.undumped}:
        # Dead, or its watchdog could not write, or the file is lost: a link's fault with a lost dump looks the same.
        reason = f"the recorded waiting ends at {name(unknown)}, without a flight-recorder dump"
    return Verdict(Conclusion.UNDETERMINED, reason, missing=wanted, detail=listed)
