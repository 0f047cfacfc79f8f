"""Writes the reasons of slowness in words and figures, for people on call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_robust.localize.ranks import name
from slurm_robust.localize.slow.case import Case
from slurm_robust.localize.slow.outliers import Outlier
from slurm_robust.localize.slow.robust_statistics import Places, median, middle

_WORTH_EXPLAINING = 0.05


def percent(share: float) -> str:
    """Return the share in per cent, such as `5.3 %`; from ten per cent on without decimals."""
    return f"{100 * share:.1f} %" if abs(share) < 0.0995 else f"{100 * share:.0f} %"


def why(case: Case, node: str, here: Sequence[int], outlier: Outlier) -> str:
    """Return one sentence: who is slow, how slow, compared with whom, in how many steps."""
    ranks = [case.ranks[at] for at in here]
    if node and len(here) == case.nodes.count(node) > 1:
        who = f"node {node}: its {len(here)} ranks compute"
    else:
        who = f"{name(ranks)}{f' on {node}' if node else ''} compute{'s' if len(ranks) == 1 else ''}"
    more = f", since step {case.steps[outlier.first]}" if outlier.first else ""
    if outlier.how == "bursts":
        more = "; other ranks hardly ever do"
    peers, steps = _peers(case, here[0], outlier), f"{outlier.hits} of {outlier.steps} steps"
    return f"{who} {percent(outlier.share)} longer than {peers} in {steps}{more}"


def _peers(case: Case, at: int, outlier: Outlier) -> str:
    peers = case.peers
    keys = peers.twins if outlier.by == "twins" and peers.twins is not None else peers.role
    count = int((keys == keys[at]).sum()) - 1
    peer = "peer" if count == 1 else f"{count} peers"
    if outlier.by == "twins":
        return f"its {peer} with the same data"
    return f"its {peer}" + (f" of stage {peers.stage[at]}" if peers.stages > 1 else "")


def detail(case: Case, outlier: Outlier) -> str:
    """Return what else is known: since when it is slow, and by how many times the usual difference."""
    if outlier.how == "bursts":
        return "slow now and then, as with heat or power limits"
    since = "slow in all steps examined"
    if outlier.first or outlier.seen_from:
        mostly = "" if outlier.first else "mostly "
        since = f"slow, {mostly}since step {case.steps[outlier.first or outlier.seen_from]}"
    return f"{since}; {outlier.z:.0f} times the usual difference between healthy ranks"


def cost(case: Case, outliers: Sequence[Outlier]) -> str:
    """Return a sentence on what the job would gain without these outliers."""
    slow = np.zeros(len(case.ranks), dtype=bool)
    slow[[at for o in outliers for at in o.members]] = True
    table = case.table[min(o.first for o in outliers) :]
    # The slowest time of each step; NaN if no rank of the set has a time.
    theirs, others = np.fmax.reduce(table[:, slow], axis=1), np.fmax.reduce(table[:, ~slow], axis=1)
    lost = np.maximum(theirs - others, 0.0) / np.maximum(others, 1e-12)
    lost = lost[np.isfinite(lost)]
    share = float(lost.mean()) if len(lost) else 0.0
    if share < 0.002:
        return "other ranks are as slow for other reasons: the job would hardly be faster without it"
    return f"the job loses about {percent(share)} of each step's compute to it"


def nobody(case: Case) -> str:
    """Return why no machine is named: even times, slowness that moves with the data, or the program's own shape."""
    steps, ranks = case.table.shape
    heads = f"no machine is slow among {ranks} ranks in {steps} steps"
    lost = middle(np.fmax.reduce(case.table, axis=1) / np.maximum(median(case.table), 1e-12) - 1)
    if not lost > _WORTH_EXPLAINING:
        return f"{heads}: the slowest rank is {percent(max(0.0, lost))} above the median"
    if case.peers.stages > 1:
        by_stage = np.array([middle(median(case.table[:, case.peers.stage == s])) for s in np.unique(case.peers.stage)])
        high = int(by_stage.argmax())
        over = float(by_stage[high]) / middle(by_stage) - 1
        if over > max(_WORTH_EXPLAINING, 0.5 * lost):
            stage = np.unique(case.peers.stage)[high]
            last = " (the last: loss and vocabulary)" if stage == case.peers.stages - 1 else ""
            return f"{heads}: stage {stage}{last} takes {percent(over)} longer on every node, by the program's design"
    slowest = _slowest(case)
    if len(slowest) > 2 and slowest.max() <= steps / 2:
        return (
            f"{heads}: the slowest rank is {percent(lost)} above the median, a different rank each time "
            f"({len(slowest)} of them): the imbalance moves, as with sequence lengths or pauses of the program"
        )
    slowest_is = f"the slowest rank is {percent(lost)} above the median"
    return f"{heads}: {slowest_is}, but not slower than ranks with the same work"


def _slowest(case: Case) -> Places:
    """Return in how many steps each of the slowest ranks was the slowest of all."""
    slowest = np.argmax(np.nan_to_num(case.table, nan=-1.0), axis=1)
    return np.unique(slowest, return_counts=True)[1]
