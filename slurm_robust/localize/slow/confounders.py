"""Why a rank that stands out may be no slow machine: its data, a fast twin, other work than the rest."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.localize.ranks import name
from slurm_robust.localize.slow import wording
from slurm_robust.localize.slow.case import Case
from slurm_robust.localize.slow.effects import summed
from slurm_robust.localize.slow.outliers import Finding
from slurm_robust.localize.slow.robust_statistics import known, median

_REPLICA_SHARE = 0.5
"""Of what a rank is slow, this much must show in others for it to be what they share."""
_ALONE = 0.5
"""Without a layout, nobody else may be slow by this share of the one that is named."""
_TWIN_SHARE, _DOUBT = 0.5, 1.0
"""Of what a rank is slower than its twins, this much must show against its role, give or take its scale."""


def contradicted(finding: Finding, rows: Sequence[Sequence[float]], count: int) -> bool:
    """Whether a rank that is slower than its twins is no slower than its role: then a twin is fast."""
    if finding.by == "role" or finding.how != "steady":
        return False
    effects = summed(rows, count, finding.seen_from)
    level = median(effects.level[at] for at in finding.members)
    return level + _DOUBT * effects.scale < _TWIN_SHARE * finding.share


def follows_data(case: Case, finding: Finding, rows: Sequence[Sequence[float]], *, noisy: bool) -> bool:
    """Whether the rest of the replica, on other nodes, is as slow: what they share is data.

    Args:
        case: What is judged.
        finding: Who stands out.
        rows: Excess over the role.
        noisy: Replicas differ from step to step by far more than twins do: by their data.
    """
    peers = case.peers
    if not peers.known or finding.by == "twins":
        return False
    if noisy and _shared_by_twins(case, finding, rows):
        return True
    replicas = {peers.replica[at] for at in finding.members}
    homes = {case.node(at) for at in finding.members}
    rest = [
        at
        for at in range(len(case.ranks))
        if peers.replica[at] in replicas and at not in finding.members and (case.node(at) not in homes or "" in homes)
    ]
    if not rest:
        return False
    window = slice(finding.seen_from, None)
    level = median(median(rows[at][window]) for at in rest)
    if finding.how == "bursts":
        same = [index for index, v in enumerate(rows[finding.members[0]]) if v > finding.share / 2]
        level = median(median(rows[at][index] for index in same) for at in rest)
    return level > _REPLICA_SHARE * finding.share


def _shared_by_twins(case: Case, finding: Finding, rows: Sequence[Sequence[float]]) -> bool:
    """Whether a rank's twins are as slow, and others on its node, if there are any, are not: then it is their data.

    (A whole node that is slow is a finding of its own, of several members.)
    """
    twins = case.peers.twins
    if twins is None or len(finding.members) > 1:
        return False
    at = finding.members[0]
    mates = [other for other, key in enumerate(twins) if key == twins[at] and other != at]
    others = [o for o in range(len(twins)) if o != at and o not in mates and case.node(o) == case.node(at) != ""]
    limit = _REPLICA_SHARE * finding.share
    slow = [median(median(rows[at][finding.seen_from :]) for at in some) > limit for some in (mates, others) if some]
    return slow in ([True], [True, False])


def may_be_the_program(case: Case, findings: Sequence[Finding], rows: Sequence[Sequence[float]]) -> str:
    """Without a layout: why the slow ranks may have other work than the rest; empty where they hardly can."""
    members = {at for f in findings for at in f.members}
    first_slow = min(f.first for f in findings)
    least = min(f.share for f in findings)
    others = known(median(row[first_slow:]) for at, row in enumerate(rows) if at not in members)
    slow = sorted(case.ranks[at] for at in members)
    if others and others[-1] > _ALONE * least:
        high = sum(v > _ALONE * least for v in others)
        return (
            f"{name(slow)} are slower by {wording.percent(least)}, and {high} others nearly so: work may differ by rank"
        )
    if first_slow:
        return ""  # the layout does not change in the middle
    first, last = case.ranks[0], case.ranks[-1]
    if slow[-1] != last and (slow[0] != first or len(slow) == 1):
        return ""
    end = "last" if slow[-1] == last else "first"
    share = wording.percent(max(f.share for f in findings))
    return f"{name(slow)} are slower by {share}: a slow machine, or the {end} pipeline stage with more to do"
