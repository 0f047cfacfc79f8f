"""Finds reasons for a rank to be slow on a healthy machine: its data, a fast twin, other work than other ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_robust.localize.ranks import name
from slurm_robust.localize.slow import wording
from slurm_robust.localize.slow.case import Case
from slurm_robust.localize.slow.effects import Comparison
from slurm_robust.localize.slow.outliers import Outlier
from slurm_robust.localize.slow.robust_statistics import known, median, middle

_REPLICA_SHARE = 0.5
"""If other ranks are slow by at least this share of a rank's slowness, they share the cause."""
_ALONE = 0.5
"""Without a layout, other ranks must not be slow by this share of the slowness of the rank that is named."""
_TWIN_SHARE, _DOUBT = 0.5, 1.0
"""A rank's slowness against its role must be at least this share of its slowness against its twins.

The second number is how many times the scale of the comparison is allowed for as error.
"""


def contradicted(outlier: Outlier, role: Comparison) -> bool:
    """Return whether a rank that is slower than its twins is no slower than its role: then a twin is fast."""
    if outlier.by == "role" or outlier.how != "steady":
        return False
    effects = role.effects(outlier.seen_from)
    level = middle(effects.level[list(outlier.members)])
    return level + _DOUBT * effects.scale < _TWIN_SHARE * outlier.share


def follows_data(case: Case, outlier: Outlier, role: Comparison, *, noisy: bool) -> bool:
    """Return whether the rest of the replica, on other nodes, is as slow: then the cause is the data that they share.

    `noisy`: replicas differ from step to step by far more than twins do, because of their data.
    """
    peers, members = case.peers, list(outlier.members)
    if not peers.known or outlier.by == "twins":
        return False
    if noisy and _shared_by_twins(case, outlier, role):
        return True
    rest = np.isin(peers.replica, peers.replica[members])
    homes = case.node_numbers[members]
    if homes.min() >= 0:
        rest &= ~np.isin(case.node_numbers, homes)
    rest[members] = False
    if outlier.how == "bursts":
        same = role.rows[members[0]] > outlier.share / 2
        levels = median(role.rows[rest][:, same])
    else:
        levels = role.effects(outlier.seen_from).level[rest]
    return middle(levels) > _REPLICA_SHARE * outlier.share


def _shared_by_twins(case: Case, outlier: Outlier, role: Comparison) -> bool:
    """Return whether a rank's twins are as slow, and other ranks on its node are not: then the cause is their data.

    (A whole node that is slow is an outlier of its own, of several members.)
    """
    twins = case.peers.twins
    if twins is None or len(outlier.members) > 1:
        return False
    at = outlier.members[0]
    mates = twins == twins[at]
    others = (case.node_numbers == case.node_numbers[at]) & (case.node_numbers >= 0) & ~mates
    mates[at] = False
    level = role.effects(outlier.seen_from).level
    limit = _REPLICA_SHARE * outlier.share
    return mates.any() and middle(level[mates]) > limit and not (others.any() and middle(level[others]) > limit)


def may_be_the_program(case: Case, outliers: Sequence[Outlier], role: Comparison) -> str:
    """Return why, without a layout, the slow ranks may have other work than the rest; empty if they hardly can."""
    members = [at for o in outliers for at in o.members]
    first_slow = min(o.first for o in outliers)
    least = min(o.share for o in outliers)
    levels = median(role.rows[:, first_slow:])
    levels[members] = np.nan
    others = known(levels)
    slow = sorted(case.ranks[at] for at in members)
    who = f"{name(slow)} {'is' if len(slow) == 1 else 'are'}"
    high = int((others > _ALONE * least).sum())
    if high:
        return f"{who} {wording.percent(least)} slower, and {high} others nearly as slow: ranks may have different work"
    if first_slow:
        return ""  # the layout does not change in the middle
    first, last = case.ranks[0], case.ranks[-1]
    if slow[-1] != last and (slow[0] != first or len(slow) == 1):
        return ""
    end = "last" if slow[-1] == last else "first"
    share = wording.percent(max(o.share for o in outliers))
    return f"{who} {share} slower: a slow machine, or the {end} pipeline stage, which has more work"
