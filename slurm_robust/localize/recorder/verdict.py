"""The verdict that flight-recorder dumps carry by themselves: sinks of the wait-for graph, or a reason for none."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.localize.ranks import name
from slurm_robust.localize.recorder.align import Alignment, Edge, Mismatch, Why, align
from slurm_robust.localize.recorder.dump import RankDump
from slurm_robust.model import Conclusion, Suspect, Verdict
from slurm_robust.words import joined

CONFIDENCE_STUCK = 0.9
"""Its peers completed what its own device holds."""
CONFIDENCE_ABSENT = 0.85
"""It is waited for and waits for nobody. Whether it is held by its node or by the program, stacks say."""
CONFIDENCE_NO_DUMP = 0.6
"""It left no dump: dead, or its watchdog could not write."""
MAX_SUSPECT_SHARE = 0.5
"""More nodes than this share: what they have in common is at fault, not each of them."""


@dataclass(frozen=True)
class _Lead:
    rank: int
    confidence: float
    what: str
    detail: str
    order_s: float


def judge_dumps(
    dumps: Sequence[RankDump], rank_nodes: Mapping[int, str], waiting: Collection[int] = ()
) -> Verdict | None:
    """Who holds all others, as far as the recorders know; None where nothing is pending anywhere.

    Args:
        dumps: One of each rank that left one.
        rank_nodes: Where each rank runs; a rank that is not in it is suspected without a node.
        waiting: Ranks whose stacks show them waiting for their peers: that they left no dump says nothing.
    """
    if not dumps or not any(d.pending for d in dumps):
        return None
    seen = align(dumps)
    missing = (f"flight-recorder dumps of {name(seen.undumped)}",) if seen.undumped else ()
    if seen.mismatches:
        return _code_fault(seen.mismatches, missing)
    leads = [*_stuck(seen, dumps), *_sinks(seen, dumps, waiting)]
    if not leads:
        return _nobody(seen, missing)
    nodes = {rank_nodes.get(lead.rank, f"?{lead.rank}") for lead in leads}
    known = {rank_nodes.get(d.rank, f"?{d.rank}") for d in dumps} | nodes
    if len(known) > 2 and len(nodes) > MAX_SUSPECT_SHARE * len(known):
        who = name(lead.rank for lead in leads)
        reason = f"{who} hold all others, on {len(nodes)} of {len(known)} nodes: no node explains it"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=(*missing, "what those ranks share: storage, input"))
    suspects = tuple(_suspects(leads, rank_nodes))
    return Verdict(Conclusion.CULPRIT, joined(s.why for s in suspects), suspects, missing=missing)


def _stuck(seen: Alignment, dumps: Sequence[RankDump]) -> list[_Lead]:
    last = {d.rank: d.last_at_s for d in dumps}
    return [
        _Lead(
            rank,
            CONFIDENCE_STUCK,
            f"its device holds {op.name} {op.seq} of {_group(dumps, rank, op.group)}",
            f"{name(done)} completed it",
            last[rank],
        )
        for rank, (op, done) in seen.stuck.items()
    ]


def _sinks(seen: Alignment, dumps: Sequence[RankDump], waiting: Collection[int]) -> list[_Lead]:
    """Ranks that are waited for, wait for nobody, and whose device holds nothing either."""
    # A send may wait although nobody is late; not one whose receiver has posted nothing.
    firm = {e.waiter for e in seen.edges if not e.op.sends or e.why is Why.ABSENT}
    by_rank = {d.rank: d for d in dumps}
    wanted: dict[int, list[Edge]] = defaultdict(list)
    for edge in seen.edges:
        if edge.why is Why.ABSENT and edge.rank not in firm and edge.rank not in seen.stuck:
            wanted[edge.rank].append(edge)
    leads = []
    for rank, edges in wanted.items():
        surest = min(edges, key=lambda e: (e.op.p2p, e.op.order))  # a collective tells more than one pair
        op, group = surest.op, _group(dumps, surest.waiter, surest.op.group)
        waiters = name(e.waiter for e in edges)
        dump = by_rank.get(rank)
        if dump is None and rank in waiting:
            continue
        confidence, said = (CONFIDENCE_ABSENT, "never joined") if dump else (CONFIDENCE_NO_DUMP, "left no dump, as for")
        what = f"{said} {op.name} {op.seq} of {group}"
        leads.append(_Lead(rank, confidence, what, f"{waiters} wait for it there", dump.last_at_s if dump else 0.0))
    # With dumps that tell, a rank without one is only missing evidence.
    told = [lead for lead in leads if lead.confidence > CONFIDENCE_NO_DUMP]
    return told or ([] if seen.stuck else leads)


def _group(dumps: Sequence[RankDump], member: int, group: str) -> str:
    """What the program calls the group, and its members."""
    for dump in dumps:
        if dump.rank == member and group in dump.groups:
            found = dump.groups[group]
            return f"{found.desc or 'group'} ({name(found.ranks)})"
    return f"group {group}"


def _suspects(leads: Iterable[_Lead], rank_nodes: Mapping[int, str]) -> list[Suspect]:
    """One a node, or one a rank where its node is not known; whoever stopped first comes first."""
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
        confidence = round(surest.confidence * share, 3)
        suspects.append(Suspect(known, ranks, confidence, f"{where}: {surest.what}", detail=surest.detail))
    return suspects


def _first(leads: Iterable[_Lead]) -> float:
    return min((lead.order_s for lead in leads if lead.order_s > 0), default=0.0)


def _code_fault(mismatches: Sequence[Mismatch], missing: tuple[str, ...]) -> Verdict:
    first = mismatches[0]
    told = joined((f"{name(who)}: {what}" for what, who in first.entered), most=3)
    group = f"{first.group.desc or 'group ' + first.group.name} ({name(first.group.ranks)})"
    reason = f"different operations under number {first.seq} of {group}: the program's order or shapes differ"
    return Verdict(Conclusion.USER_CODE, reason, missing=missing, detail=told)


def _nobody(seen: Alignment, missing: tuple[str, ...]) -> Verdict:
    wanted = (*missing, "NCCL RAS, NIC counters, pairwise tests of the nodes")
    if seen.closed:
        group, op = seen.closed[0]
        reason = (
            f"all of {name(group.ranks)} joined {op.name} {op.seq} of {group.desc or 'group ' + group.name}, "
            "none completed it: a link or one device among them"
        )
        return Verdict(Conclusion.UNDETERMINED, reason, missing=wanted)
    waited = Counter(e.rank for e in seen.edges).most_common(3)
    told = joined(f"{name([rank])} is waited for by {count}" for rank, count in waited)
    reason = "every rank that is waited for waits for another itself"
    return Verdict(Conclusion.UNDETERMINED, reason, missing=wanted, detail=told)
