"""Slowness in words and figures: what an on-call reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_robust.localize.ranks import name
from slurm_robust.localize.slow.robust_statistics import NAN, known, median

if TYPE_CHECKING:
    from slurm_robust.localize.slow.case import Case
    from slurm_robust.localize.slow.outliers import Finding

_WORTH_TELLING = 0.05


def percent(share: float) -> str:
    """`5.3 %`; from ten per cent on without decimals."""
    return f"{100 * share:.1f} %" if abs(share) < 0.0995 else f"{100 * share:.0f} %"


def why(case: Case, node: str, here: Sequence[int], finding: Finding) -> str:
    """One sentence: who, how slow, against whom, in how many steps."""
    ranks = [case.ranks[at] for at in here]
    all_of = [at for at in range(len(case.ranks)) if node and case.node(at) == node]
    if node and len(here) == len(all_of) > 1:
        who = f"node {node}: its {len(here)} ranks compute"
    elif node:
        who = f"{name(ranks)} on {node} compute{'s' if len(ranks) == 1 else ''}"
    else:
        who = f"{name(ranks)} compute{'s' if len(ranks) == 1 else ''}"
    more = f", since step {case.steps[finding.first]}" if finding.first else ""
    if finding.how == "bursts":
        more = ", the others hardly ever"
    return f"{who} {percent(finding.share)} longer than {_peers(case, here[0], finding)} in {_steps(finding)}{more}"


def _steps(finding: Finding) -> str:
    return f"{finding.hits} of {finding.steps} steps"


def _peers(case: Case, at: int, finding: Finding) -> str:
    peers = case.peers
    keys = peers.twins if finding.by == "twins" and peers.twins is not None else peers.role
    count = sum(key == keys[at] for key in keys) - 1
    peer = "peer" if count == 1 else f"{count} peers"
    if finding.by == "twins":
        return f"its {peer} with the same data"
    return f"its {peer}" + (f" of stage {peers.stage[at]}" if peers.stages > 1 else "")


def detail(case: Case, finding: Finding) -> str:
    """What else is known: since when, and in how many standard deviations."""
    if finding.how == "bursts":
        return "slow now and then, as with heat or power limits"
    since = "slow in all of the steps looked at"
    if finding.first or finding.seen_from:
        most = "" if finding.first else "most "
        since = f"slow, {most}since step {case.steps[finding.first or finding.seen_from]}"
    return f"{since}; {finding.z:.0f} times what healthy ranks differ by"


def cost(case: Case, findings: Sequence[Finding]) -> str:
    """What the job would gain without them, where that can be told."""
    slow = {at for f in findings for at in f.members}
    first = min(f.first for f in findings)
    lost = []
    for row in case.rows[first:]:
        rest = row[:]
        for at in slow:
            rest[at] = NAN
        others, theirs = known(rest), known(row[at] for at in slow)
        if others and theirs:
            lost.append(max(0.0, theirs[-1] - others[-1]) / max(others[-1], 1e-12))
    share = sum(lost) / len(lost) if lost else 0.0
    if share < 0.002:
        return "others are as slow for other reasons: without it the job would hardly be faster"
    return f"the job loses about {percent(share)} of each step's compute to it"


def nobody(case: Case, slowest: Counter[int]) -> str:
    """Why nobody is named: even, moving with the data, or the program's own shape."""
    ranks, steps = len(case.ranks), len(case.rows)
    heads = f"no machine is slow among {ranks} ranks in {steps} steps"
    ahead = []
    for row in case.rows:
        there = known(row)
        if there:
            ahead.append(there[-1] / max(median(there), 1e-12) - 1)
    lost = median(ahead)
    if not lost > _WORTH_TELLING:
        return f"{heads}: the slowest is {percent(max(0.0, lost))} above the middle"
    if case.peers.stages > 1:
        by_stage = {
            stage: median(median(row[at] for at, s in enumerate(case.peers.stage) if s == stage) for row in case.rows)
            for stage in sorted(set(case.peers.stage))
        }
        high = max(by_stage, key=lambda stage: by_stage[stage])
        over = by_stage[high] / median(by_stage.values()) - 1
        if over > max(_WORTH_TELLING, 0.5 * lost):
            last = " (the last: loss and vocabulary)" if high == case.peers.stages - 1 else ""
            return (
                f"{heads}: stage {high}{last} takes {percent(over)} longer than the others on every node: the program's"
            )
    most = slowest.most_common(1)[0][1] if slowest else 0
    if len(slowest) > 2 and most <= steps / 2:
        return (
            f"{heads}: the slowest is {percent(lost)} above the middle, another rank in turn ({len(slowest)} of them): "
            "the imbalance moves, as with sequence lengths or pauses of the program"
        )
    return f"{heads}: the slowest is {percent(lost)} above the middle, and no rank is slower than those with its work"
