"""Makes the verdict on one job's step timings: outliers among the ranks, less those with another explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.localize.ranks import name
from slurm_robust.localize.slow import wording
from slurm_robust.localize.slow.case import Case, make_case
from slurm_robust.localize.slow.confounders import contradicted, follows_data, may_be_the_program
from slurm_robust.localize.slow.effects import Comparison, by_role, by_twins
from slurm_robust.localize.slow.outliers import MIN_STEPS, Outlier, bursts, sharp, steady
from slurm_robust.localize.slow.unnamed import UNNAMED
from slurm_robust.localize.timings import StepTimings

CONFIDENCE_STEADY = 0.9
CONFIDENCE_BURSTS = 0.75
CONFIDENCE_NO_LAYOUT = 0.6
CONFIDENCE_GROUP = 0.4
CONFIDENCE_DERIVED = 0.5
"""Confidence if own work is total less communication, which includes unmeasured waiting, logs and checkpoints."""
CONFIDENCE_FIRST_RANK = 0.5
"""Confidence for rank 0, which often has extra work: logs, metrics, checkpoints."""
OWN_WORK_SHARE, OWN_WORK_STEPS = 0.25, 0.9
"""If rank 0 is slow by more than this share in nearly all steps, extra work does not explain it."""
MANY = 0.25
"""If more than this share of the ranks is slow, these ranks cannot be outliers."""
_NEXT_TO_WORST = 0.35
"""Slowness of less than this share of the slowest is not named beside it: it shows once the slowest is gone."""
_QUIET = 0.5
"""If twins differ by less than this share of what replicas differ by, the replicas differ by their data."""


def verdict_of(timings: StepTimings, sizes: Mapping[str, int], order: str, world_size: int) -> Verdict:
    """Return the verdict on who slows the job down; the arguments are those of `judge_timings`."""
    case = make_case(timings, sizes, order, max(world_size, max(timings.ranks, default=-1) + 1))
    if isinstance(case, Verdict):
        return case
    role = by_role(case.table, case.peers)
    twins = None
    if case.peers.twins is not None and not sharp(role):
        twins = by_twins(case.table, case.peers, case.peers.twins)
    if not any(np.isfinite(compared.rows).any() for compared in (role, twins) if compared is not None):
        reason = "no rank has a peer with the same work, so no rank can be called slow"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=(*case.notes, "ranks that do the same work"))
    verdict = _judged(case, role, twins)
    return replace(verdict, missing=tuple(dict.fromkeys((*verdict.missing, *case.notes))))


def _judged(case: Case, role: Comparison, twins: Comparison | None) -> Verdict:
    outliers = _outliers(case, role, twins)
    if not outliers:
        return Verdict(Conclusion.NONE, wording.nobody(case))
    count = sum(len(o.members) for o in outliers)
    if count > max(1, MANY * len(case.ranks)):
        reason = f"{count} of {len(case.ranks)} ranks are slower than their peers: too many to be outliers"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=_layout_wanted(case), detail=UNNAMED)
    noisy = twins is not None and twins.effects().noise <= _QUIET * role.effects().noise
    machines = [o for o in outliers if not follows_data(case, o, role, noisy=noisy)]
    if not machines:
        return _larger_share_of_data(case, outliers)
    if not case.peers.known and any(o.how == "bursts" for o in machines):
        who = name(case.ranks[at] for o in machines for at in o.members)
        reason = f"{who} are slower than the median in many steps: a slow machine, or ranks with other work"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=_layout_wanted(case), detail=UNNAMED)
    worst = max(o.share for o in machines)
    machines = [o for o in machines if o.share >= _NEXT_TO_WORST * worst]
    if not case.peers.known and (why := may_be_the_program(case, machines, role)):
        return Verdict(Conclusion.UNDETERMINED, why, missing=_layout_wanted(case), detail=UNNAMED)
    return _culprits(case, machines)


def _outliers(case: Case, role: Comparison, twins: Comparison | None) -> list[Outlier]:
    """Return all outliers, each rank in one of them only: steady outliers and whole nodes first."""
    found: list[Outlier] = []
    taken: set[int] = set()
    # Twins first: they have the same data, so data does not explain a difference between them.
    compared = [role] if twins is None else [twins, role]
    for some in (*(steady(c, case.node_numbers) for c in compared), *map(bursts, compared)):
        for outlier in sorted(some, key=lambda o: -len(o.members)):
            if not taken.intersection(outlier.members) and not contradicted(outlier, role):
                found.append(outlier)
                taken.update(outlier.members)
    return found


def _larger_share_of_data(case: Case, outliers: Sequence[Outlier]) -> Verdict:
    replicas = sorted({int(case.peers.replica[at]) for o in outliers for at in o.members})
    reason = (
        f"the ranks of replica {', '.join(map(str, replicas))} are equally slow on all nodes of the replica "
        f"({wording.percent(max(o.share for o in outliers))}): their share of the data is larger, no machine is slow"
    )
    return Verdict(Conclusion.NONE, reason)


def _layout_wanted(case: Case) -> tuple[str, ...]:
    return () if case.peers.known else ("the parallel layout: which ranks do the same work (--layout)",)


def _culprits(case: Case, outliers: Sequence[Outlier]) -> Verdict:
    by_node: dict[str, list[Outlier]] = {}
    for outlier in outliers:
        for node in dict.fromkeys(case.nodes[at] for at in outlier.members):
            by_node.setdefault(node, []).append(outlier)
    cost = wording.cost(case, outliers)
    suspects = []
    for node, found in by_node.items():
        here = [at for o in found for at in o.members if case.nodes[at] == node]
        worst = max(found, key=lambda o: o.share)
        why = wording.why(case, node, here, worst)
        ranks = tuple(sorted(case.ranks[at] for at in here))
        suspect = Suspect(node, ranks, _confidence(case, worst), why, detail=wording.detail(case, worst))
        suspects.append(_derived(case, _first_rank(_group(case, suspect, here, len(by_node)), worst)))
    suspects.sort(key=lambda s: -s.confidence)
    reason = joined(s.why for s in suspects)
    return Verdict(Conclusion.CULPRIT, reason, tuple(suspects), detail=cost, missing=_layout_wanted(case))


def _confidence(case: Case, outlier: Outlier) -> float:
    confidence = CONFIDENCE_STEADY if outlier.how == "steady" else CONFIDENCE_BURSTS
    if outlier.how == "steady" and outlier.steps < 2 * MIN_STEPS:
        confidence -= 0.1
    return confidence if case.peers.known else min(confidence, CONFIDENCE_NO_LAYOUT)


def _group(case: Case, suspect: Suspect, here: Sequence[int], nodes: int) -> Suspect:
    """Return the suspect, with less confidence if a whole tensor group is slow on several nodes.

    One member delays the group, and the timings do not show which.
    """
    twins = case.peers.twins
    if twins is None or nodes < 2 or len(here) < 2:
        return suspect
    group = np.unique(twins[list(here)])
    if len(group) > 1 or len(np.unique(case.node_numbers[twins == group[0]])) < 2:
        return suspect
    what = "its whole tensor group is slow: compute times may include waiting inside the group"
    return replace(suspect, confidence=min(suspect.confidence, CONFIDENCE_GROUP), detail=what)


def _derived(case: Case, suspect: Suspect) -> Suspect:
    """Return the suspect, without blame for its node if its own work is only known as total less communication."""
    if not case.derived.intersection(suspect.ranks):
        return suspect
    what = "; ".join(filter(None, (suspect.detail, "its own work is only known as total less communication")))
    confidence = min(suspect.confidence, CONFIDENCE_DERIVED)
    return replace(suspect, confidence=confidence, infrastructure=False, detail=what)


def _first_rank(suspect: Suspect, outlier: Outlier) -> Suspect:
    always = outlier.how == "steady" and outlier.hits >= OWN_WORK_STEPS * outlier.steps
    if suspect.ranks != (0,) or (always and outlier.share > OWN_WORK_SHARE):
        return suspect
    what = "; ".join(filter(None, (suspect.detail, "rank 0 often has work of its own (logs, metrics, checkpoints)")))
    confidence = min(suspect.confidence, CONFIDENCE_FIRST_RANK)
    return replace(suspect, confidence=confidence, infrastructure=False, detail=what)
