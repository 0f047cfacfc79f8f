"""Judges which machine is slow by repeated captures: which ranks are outside communication while others wait?

This is ByteRobust's rule for a job that moves, but too slowly: each round gives a vote to the ranks that the other
ranks wait for, and to the parallel group that they share; the rank with votes in most rounds is named. The rule finds
slowness of tens of per cent, not of five per cent: a rank that is slower by a tenth is waited for in a tenth of the
rounds. Step times (`judge`) show far more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.localize.evidence import Capture, Evidence, StackFrame
from slurm_robust.localize.judge import judge
from slurm_robust.localize.layout import Groups, known_groups
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.process_tree import rank_frames, rank_place

MIN_ROUNDS = 3
"""Fewer cannot distinguish a pause from slowness."""
WAITING_SHARE = 0.5
"""At least this share of the ranks must wait; else the round does not count for any rank."""
OUTSIDE_SHARE = 0.25
"""If more than this share is outside communication, all ranks do that work, and the round does not count."""
_MOST = 0.6
"""Of the rounds: who has fewer votes is not named."""
_SECOND = 0.5
"""If the second has more than this share of the votes of the first, the verdict is undetermined."""
CONFIDENCE_RANK, CONFIDENCE_GROUP = 0.6, 0.4


def judge_repeated(evidence: Evidence) -> Verdict:
    """Return the verdict of `judge`, or, if it names no rank and the job moves, the one by the votes of the rounds."""
    verdict = judge(evidence)
    if len(evidence.captures) < MIN_ROUNDS or verdict.conclusion is not Conclusion.NONE:
        return verdict
    slow = judge_rounds(evidence)
    if slow is None:
        return verdict
    detail = "; ".join(filter(None, (slow.detail, verdict.reason)))
    return replace(slow, detail=detail, classes=verdict.classes, missing=verdict.missing)


def judge_rounds(evidence: Evidence) -> Verdict | None:
    """Return a verdict on who is waited for in most rounds; None if no rank is, or too few rounds show another step.

    A long pause of one rank (an evaluation) fills many rounds: rounds of the same step count once.
    """
    groups = known_groups(evidence)[0]
    rounds = [_outside(capture) for capture in _apart(evidence.captures)]
    if len(rounds) < MIN_ROUNDS:
        return None
    ranks = Counter(rank for outside in rounds for rank in outside)
    if not ranks:
        return None
    nodes = Counter(node for outside in rounds for node in {evidence.rank_nodes.get(r, "") for r in outside})
    return _by_node(evidence, ranks, nodes, len(rounds)) or _by_group(evidence, groups, rounds)


def _by_node(evidence: Evidence, ranks: Counter[int], nodes: Counter[str], rounds: int) -> Verdict | None:
    (node, votes), *rest = nodes.most_common(2)
    if votes < _MOST * rounds or (rest and rest[0][1] > _SECOND * votes):
        return None
    here = tuple(sorted(r for r, n in ranks.items() if evidence.rank_nodes.get(r, "") == node and n > votes / 2))
    who = f"{name(here)} on {node or 'an unknown node'}" if here else f"node {node}"
    why = f"{who}: the others waited for it in {votes} of {rounds} rounds"
    return Verdict(Conclusion.CULPRIT, why, (Suspect(node, here, CONFIDENCE_RANK, why),), detail="slow, not hung")


def _by_group(evidence: Evidence, groups: Groups, rounds: list[frozenset[int]]) -> Verdict | None:
    shared = [groups.shared(outside) for outside in rounds if outside]
    votes = Counter(group for group in shared if group is not None)
    if not votes:
        return None
    (group, count), *rest = votes.most_common(2)
    if count < _MOST * len(rounds) or (rest and rest[0][1] > _SECOND * count):
        return None
    by_node: dict[str, list[int]] = {}
    for rank in group.ranks:
        by_node.setdefault(evidence.rank_nodes.get(rank, ""), []).append(rank)
    why = f"the others waited for ranks of the {group.description} in {count} of {len(rounds)} rounds"
    confidence = round(CONFIDENCE_GROUP / len(by_node), 2)
    suspects = tuple(Suspect(node, tuple(here), confidence, why) for node, here in sorted(by_node.items()))
    return Verdict(Conclusion.CULPRIT, joined([why]), suspects, detail="slow, not hung")


def _outside(capture: Capture) -> frozenset[int]:
    """Return the ranks that the others wait for; empty if too few wait, or too many do not."""
    seen = [rank for rank in capture.ranks if any(process.threads for process in rank.processes)]
    outside = frozenset(rank.rank for rank in seen if not rank_place(rank).waits_for_peers)
    waiting = len(seen) - len(outside)
    few = len(outside) <= max(1, OUTSIDE_SHARE * len(seen))
    return outside if few and seen and waiting >= WAITING_SHARE * len(seen) else frozenset()


def _apart(captures: tuple[Capture, ...]) -> list[Capture]:
    """Return rounds that show another step than the round before: by progress, or by a rank that has gone on."""
    found: list[Capture] = []
    for capture in captures:
        if not found or _has_gone_on(found[-1], capture):
            found.append(capture)
    return found


def _has_gone_on(before: Capture, after: Capture) -> bool:
    old = {rank.rank: rank for rank in before.ranks}
    steps = [
        (was.progress.step, now.progress.step)
        for now in after.ranks
        if (was := old.get(now.rank)) is not None and was.progress is not None and now.progress is not None
    ]
    if steps:
        return any(now > was for was, now in steps)
    stood, now_at = _stacks(before), _stacks(after)
    inside = {rank.rank for rank in before.ranks if rank_place(rank).waits_for_peers}
    return any(stood[rank] != now_at[rank] for rank in inside & stood.keys() & now_at.keys())


def _stacks(capture: Capture) -> dict[int, tuple[StackFrame, ...]]:
    return {rank.rank: frames for rank in capture.ranks if (frames := rank_frames(rank)) is not None}
