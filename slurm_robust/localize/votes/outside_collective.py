"""Votes on stacks: names the few ranks outside the collective in which all others wait, if they explain the waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.diagnose.reported_gpu_faults import blames_node
from slurm_robust.localize.evidence import Capture, Evidence, RankCapture
from slurm_robust.localize.grades import Ground, weakest
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.blocking import BLOCKED, CONFIDENCE_ONE_CAPTURE, LIKELY, Blocking, Patience, blocking
from slurm_robust.localize.stacks.known_names import Kind
from slurm_robust.localize.stacks.motion import (
    BUSY_SHARE,
    Motion,
    Stillness,
    busy_waiting,
    moving,
    spinning,
    standing,
    stillness,
)
from slurm_robust.localize.stacks.place import StackPlace
from slurm_robust.localize.stacks.process_tree import rank_place, rank_process
from slurm_robust.localize.votes.busy_ranks import Observation, verdict_at_work, verdict_unsure
from slurm_robust.localize.votes.held_ranks import gil_held, gone_for_good, in_lock, seen_held
from slurm_robust.localize.votes.progress import left_behind

MAX_UNSEEN_SHARE = 0.1
"""If more ranks than this share have no stack, one of them may be the source, so the verdict is not corroborated."""
MAX_UNREAD_SHARE = 0.2
"""With more than this not even a rank that is seen to be held is looked for."""


@dataclass(frozen=True)
class _Partition:
    """The ranks of the last capture, by what they do."""

    places: dict[int, StackPlace]
    waiting: tuple[int, ...]
    outside: tuple[RankCapture, ...]
    unseen: tuple[int, ...]
    firm: bool
    """Whether the waiting ranks are known to wait for peers, not at work in the backward pass or only at the device."""
    spin: tuple[int, ...] = ()
    """Waiting ranks that use a processor at one place: hosts that wait for a GPU do, and hosts that compute."""


def judge_outside(evidence: Evidence) -> Verdict | None:
    """Return the verdict of `judge_waiting` if it names a culprit; else None."""
    found = judge_waiting(evidence)
    return found if found is not None and found.conclusion is Conclusion.CULPRIT else None


def judge_waiting(evidence: Evidence) -> Verdict | None:
    """Return the verdict from which ranks wait and which do not; None if the last capture has no ranks."""
    if not evidence.captures or not evidence.captures[-1].ranks:
        return None
    last = evidence.captures[-1]
    parts = _scene(evidence.captures, last)
    gil = gil_held(evidence.captures)
    parts = _one_is_held(evidence.captures, last, parts, gil) or parts
    if not parts.waiting:
        return _nobody_waits(evidence, parts)
    if not parts.outside:
        return _all_wait(last, parts)
    parts = _without_spinners(evidence.captures, parts, gil)
    if _outnumbered(last, parts):
        outside_nodes = {r.node for r in parts.outside}
        who = name(r.rank for r in parts.outside)
        where = Counter(parts.places[r.rank].label for r in parts.outside).most_common(1)[0][0]
        what = f"{who} on {len(outside_nodes)} nodes are outside the collective (most at {where})"
        reason = f"{what}: no single node explains it"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("what those ranks share: storage, input, code",))
    return _minority(evidence, parts, gil)


def others_wait(evidence: Evidence, without: set[int], span_s: float = BLOCKED.span_s) -> bool:
    """Return whether the last capture and one `span_s` earlier show all other ranks in a collective, not moving."""
    last = evidence.captures[-1] if evidence.captures else None
    before = next((c for c in reversed(evidence.captures) if last and last.at_s - c.at_s >= span_s), None)
    if last is None or before is None:
        return False
    others = [r for r in last.ranks if r.rank not in without]
    earlier = {r.rank: rank_place(r) for r in before.ranks}
    return (
        bool(others)
        and _waits_firmly((before, last), others)
        and all(r.rank in earlier and earlier[r.rank].waits_for_peers for r in others)
        and not moving((before, last), (r.rank for r in others))
    )


def _scene(captures: tuple[Capture, ...], last: Capture) -> _Partition:
    places = {r.rank: rank_place(r) for r in last.ranks}
    waiting = [r for r in last.ranks if places[r.rank].waits_for_peers]
    firm = _waits_firmly(captures, waiting)
    spin: set[int] = set()
    if not waiting:
        waiting, firm = _at_common_place(last, places), False
        spin = spinning(captures, (r.rank for r in waiting))
    members = {r.rank for r in waiting}
    # A rank without a stack is still outside if something else shows what holds it (stopped, dead, gone).
    unseen = tuple(r.rank for r in last.ranks if places[r.rank].kind is Kind.UNKNOWN and blocking(r).patience is None)
    outside = tuple(r for r in last.ranks if r.rank not in members and r.rank not in unseen)
    return _Partition(places, tuple(sorted(members)), outside, unseen, firm, tuple(sorted(spin)))


def _without_spinners(captures: Sequence[Capture], parts: _Partition, gil: frozenset[int]) -> _Partition:
    """Return the partition with hosts that wait for their GPU as waiting, if other ranks outside sleep."""
    moved = set(moving(captures, (r.rank for r in parts.outside))) - gil
    busy = busy_waiting(captures, moved)
    if busy != moved or not 0 < len(busy) < len(parts.outside):
        return parts
    outside = tuple(r for r in parts.outside if r.rank not in busy)
    return replace(parts, outside=outside, spin=tuple(sorted({*parts.spin, *busy})))


def _outnumbered(last: Capture, parts: _Partition) -> bool:
    """Return whether more ranks are outside than wait, on several nodes, or they are on most nodes.

    A single node may have more ranks than wait elsewhere, if nodes are of different sizes or ranks are unseen.
    """
    nodes, outside_nodes = {r.node for r in last.ranks}, {r.node for r in parts.outside}
    waiting = set(parts.waiting)
    if len(outside_nodes) == 1 and any(r.node not in outside_nodes for r in last.ranks if r.rank in waiting):
        return False
    return len(parts.outside) > len(parts.waiting) or (len(nodes) > 2 and len(outside_nodes) > len(nodes) / 2)


def _one_is_held(
    captures: tuple[Capture, ...], last: Capture, parts: _Partition, gil: frozenset[int]
) -> _Partition | None:
    """Return ranks that are seen to be held as outside, if all others stand in the step, where they stood before.

    Under CUDA the other ranks wait at the next use of their device, which is not one line of the program.
    """
    if len(captures) < 2 or len(parts.unseen) > max(1, MAX_UNREAD_SHARE * len(last.ranks)):
        return None
    gone = gone_for_good(captures)
    held = {r.rank for r in last.ranks if r.rank in gil | gone or seen_held(r)}
    if held and held == {r.rank for r in parts.outside}:
        return None  # the waiting ranks show the same, without reading each of many thousands
    found = _held_among(captures, last, parts, held)
    if found is None and not parts.waiting:
        # If no rank is seen to wait but hosts spin, a rank in a lock is not a host that waits for its device.
        found = _held_among(captures, last, parts, held | {r.rank for r in last.ranks if in_lock(r)})
        found = found if found is not None and found.spin else None
    return found


def _held_among(captures: tuple[Capture, ...], last: Capture, parts: _Partition, held: set[int]) -> _Partition | None:
    """Return these ranks as the ranks outside, if all others are at rest or spin; else None."""
    others = {r.rank for r in last.ranks} - held - set(parts.unseen)
    if not held or not others or any(parts.places[rank].slow_by_nature for rank in others):
        return None
    before = {r.rank: rank_place(r).label for r in captures[-2].ranks}
    apart = {rank for rank in others if before.get(rank) != parts.places[rank].label}
    if any(_function(before.get(rank, "")) != _function(parts.places[rank].label) for rank in apart):
        return None
    moved = set(moving(captures, others))
    spin = busy_waiting(captures, moved)
    if moved - spin or apart - spin:
        return None
    outside = tuple(r for r in last.ranks if r.rank in held)
    found = _Partition(parts.places, tuple(sorted(others)), outside, parts.unseen, False, tuple(sorted(spin)))
    return None if _outnumbered(last, found) else found


def _function(label: str) -> str:
    return label.rpartition(":")[0]


def _waits_firmly(captures: Sequence[Capture], ranks: Iterable[RankCapture]) -> bool:
    """Return whether all these ranks are known to wait for peers: in a collective, or in backward without computing."""
    earlier = {r.rank: r for r in captures[-2].ranks} if len(captures) > 1 else {}
    for rank in ranks:
        where, process = rank_place(rank), rank_process(rank)
        if where.kind is Kind.COLLECTIVE:
            continue
        if where.kind is not Kind.BACKWARD or process is None:
            return False
        before = rank_process(earlier[rank.rank]) if rank.rank in earlier else None
        if before is None or before.pid != process.pid or min(before.cpu_s, process.cpu_s) < 0:
            if process.state != "S":
                return False
        elif process.cpu_s - before.cpu_s >= BUSY_SHARE * (captures[-1].at_s - captures[-2].at_s):
            return False
    return True


def _at_common_place(last: Capture, places: dict[int, StackPlace]) -> list[RankCapture]:
    """Return the ranks at one line of the program, if they are more than half: `.item()` etc. wait in native code."""
    in_step = [p for p in places.values() if p.kind is Kind.USER and not p.slow_by_nature]
    labels = Counter(place.label for place in in_step)
    if not labels:
        return []
    label, count = labels.most_common(1)[0]
    return [r for r in last.ranks if places[r.rank].label == label] if count > len(last.ranks) / 2 else []


def _nobody_waits(evidence: Evidence, parts: _Partition) -> Verdict:
    kinds = Counter(place.slow_by_nature or place.kind.value for place in parts.places.values())
    what, count = kinds.most_common(1)[0]
    on_the_move = moving(evidence.captures, parts.places)
    if on_the_move:
        reason = f"no rank waits for another, and {name(on_the_move)} move (most ranks are in {what})"
        return Verdict(Conclusion.NONE, reason)
    reason = f"no rank waits in a collective: {count} of {len(parts.places)} are in {what}"
    missing = "a second capture, to see whether they move"
    if len(evidence.captures) > 1:
        reason, missing = f"{reason}, and none moves", "what all ranks share: storage, input"
    return Verdict(Conclusion.UNDETERMINED, reason, missing=(missing,))


def _all_wait(last: Capture, parts: _Partition) -> Verdict:
    if parts.unseen:
        reason = f"every rank with a stack waits; {name(parts.unseen)} without a stack may be the cause"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=(f"stacks of {name(parts.unseen)}",))
    if (behind := left_behind(last)) is not None:
        return behind
    labels = Counter(place.label for place in parts.places.values())
    missing = ("flight recorder or NCCL RAS: who did not join", "pairwise tests of the nodes")
    if len(labels) == 1:
        if len(last.ranks) == 1:
            where, unknown = next(iter(labels)), ("progress, or its end",)
            reason = (
                f"the only rank stands at {where}: no other waits for it, so its stack shows neither work nor a hang"
            )
            return Verdict(Conclusion.UNDETERMINED, reason, missing=unknown)
        reason = f"all ranks wait at the same place ({next(iter(labels))}): stacks cannot show which rank holds them up"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=missing)
    members = {at: name(r for r, p in parts.places.items() if p.label == at) for at, _ in labels.most_common()}
    places_text = joined((f"{who} at {at}" for at, who in members.items()), most=4)
    reason = "all ranks wait, at different places: a wrong order of collectives in the program, or a lost message"
    return Verdict(Conclusion.UNDETERMINED, reason, missing=missing, detail=places_text)


def _minority(evidence: Evidence, parts: _Partition, gil: frozenset[int]) -> Verdict:
    captures = evidence.captures
    still_for = stillness(captures, [r.rank for r in parts.outside])
    # A thread that computes and keeps the GIL at one place holds its rank as a sleeping thread would.
    still_for |= standing(captures, gil & set(still_for))
    observed: dict[int, Observation] = {r.rank: (blocking(r), still_for[r.rank]) for r in parts.outside}
    peers = f"while {name(parts.waiting)} wait at {_where(parts)}"
    still_moving = [r for r in parts.outside if observed[r.rank][1].moves and r.rank not in gil]
    if still_moving:
        return verdict_at_work(still_moving, parts.places, observed, peers)
    unsure = verdict_unsure(parts.outside, parts.places, observed, peers, captures=len(captures), gil=gil)
    if unsure is not None:
        return unsure
    if all(_waits_for_device(r, observed[r.rank][0], evidence) for r in parts.outside):
        who, where = name(r.rank for r in parts.outside), parts.places[parts.outside[0].rank].label
        reason = f"{who} stands at {where} while an operation is open on its device, and may wait for that"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("flight recorder: who did not join",), detail=peers)
    missing = [] if _peers_explained(captures, parts) else ["two captures in a row in which all others wait"]
    if parts.spin:
        missing.append(f"whether {name(parts.spin)} wait or compute: they use a processor at one place")
    suspects: list[Suspect] = []
    grounds: list[Ground] = []
    for node in sorted({r.node for r in parts.outside}):
        here = [r for r in parts.outside if r.node == node]
        surest = max(here, key=lambda r: _trust(*observed[r.rank], parts))
        blocked, still = observed[surest.rank]
        if not _trust(blocked, still, parts)[0]:
            missing.append(still_wanted(_needed(blocked, parts), still))
        confidence = blocked.confidence if still.captures > 1 else min(blocked.confidence, CONFIDENCE_ONE_CAPTURE)
        seen = f"unmoved in {still.captures} captures over {still.span_s:.0f} s" if still.captures > 1 else ""
        ranks = tuple(sorted(r.rank for r in here))
        reported = _reported_fault(evidence, node) if blocked.by_loader else ""
        why, detail = (
            f"{name(ranks)} on {node}: {blocked.what}",
            ", ".join(filter(None, (blocked.detail, seen, reported))),
        )
        suspects.append(Suspect(node, ranks, confidence, why, blocked.infrastructure or bool(reported), detail))
        # Two views agree if the node reports a fault of its own.
        grounds += [Ground.NODE_TROUBLED] if reported else [observed[r.rank][0].ground for r in here]
    reason = joined(s.why for s in suspects)
    detail = ", ".join(filter(None, (joined(filter(None, (s.detail for s in suspects))), peers)))
    wanted = tuple(dict.fromkeys(missing))
    return Verdict(Conclusion.CULPRIT, reason, tuple(suspects), (), wanted, not wanted, detail, weakest(grounds))


def _waits_for_device(rank: RankCapture, what: Blocking, evidence: Evidence) -> bool:
    dump = evidence.recorder.get(rank.rank)
    return what.stands and dump is not None and dump.device_waits


def _reported_fault(evidence: Evidence, node: str) -> str:
    """Return what the node itself reports; empty if it reports nothing."""
    faults = (s for s in evidence.node_signals if blames_node(s) and s.node == node)
    return next((f"the node itself reports {s.detail[:120]}" for s in faults), "")


def _where(parts: _Partition) -> str:
    return Counter(parts.places[r].label for r in parts.waiting).most_common(1)[0][0]


def _needed(what: Blocking, parts: _Partition) -> Patience | None:
    """Return how long this must last; longer if the other ranks are only known to stand at a common place."""
    if what.patience is None:
        return LIKELY if what.stands and parts.firm else None
    if parts.firm:
        return what.patience
    return max(what.patience, LIKELY, key=lambda p: p.span_s)


def _trust(what: Blocking, still: Stillness, parts: _Partition) -> tuple[bool, int, float]:
    needed = _needed(what, parts)
    return needed is not None and needed.met_by(still), still.captures, still.span_s


def still_wanted(needed: Patience | None, still: Stillness) -> str:
    """Return what is missing until a rank has stood still for long enough."""
    if needed is None:
        return "evidence beyond its stack that it will not continue by itself"
    if still.last is not None and still.last.motion is Motion.UNSURE:
        return f"certainty that it does not move ({still.last.why})"
    so_far = f"so far {still.captures} over {still.span_s:.0f} s"
    return f"{needed.captures} unmoved captures over {needed.span_s:.0f} s ({so_far})"


def _peers_explained(captures: tuple[Capture, ...], parts: _Partition) -> bool:
    """Return whether all other ranks waited in the last two captures, and hardly any rank is unseen."""
    if len(captures) < 2 or len(parts.unseen) > MAX_UNSEEN_SHARE * len(parts.places):
        return False
    before = {r.rank: rank_place(r) for r in captures[-2].ranks}
    return all(
        rank in before
        and (before[rank].waits_for_peers if parts.firm else before[rank].label == parts.places[rank].label)
        for rank in parts.waiting
    )
