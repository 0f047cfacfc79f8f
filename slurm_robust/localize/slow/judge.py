"""Which machine is slow? Step timings in, `Verdict` out; pure.

A slow machine is slow whatever the data: its ranks are slower than those that do the same work, step after step, by
the same share. What all ranks of a pipeline stage have in common, what follows a replica's data, and what strikes
another rank each step, is the program's. Where ranks end their steps together and nothing tells their own work from
their waiting, nobody can be named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_robust.localize.ranks import name
from slurm_robust.localize.slow import outliers, wording
from slurm_robust.localize.slow.case import Case, make_case
from slurm_robust.localize.slow.confounders import contradicted, follows_data, may_be_the_program
from slurm_robust.localize.slow.effects import by_role, by_twins, noise
from slurm_robust.localize.slow.outliers import MIN_STEPS, Finding
from slurm_robust.localize.slow.peers import free
from slurm_robust.localize.slow.robust_statistics import known
from slurm_robust.localize.slow.timings import Timings
from slurm_robust.model import Conclusion, Suspect, Verdict
from slurm_robust.text import joined

CONFIDENCE_STEADY = 0.9
CONFIDENCE_BURSTS = 0.75
CONFIDENCE_NO_LAYOUT = 0.6
CONFIDENCE_GROUP = 0.4
CONFIDENCE_FIRST_RANK = 0.5
"""Rank 0 often has work of its own: logs, metrics, checkpoints."""
MANY = 0.25
"""More than this share of the ranks cannot be outliers among the others."""
_NEXT_TO_WORST = 0.35
"""What is slow by less than this share of the slowest is not named beside it: it shows once that is gone."""
_QUIET = 0.5
"""Twins that differ by less than this share of what replicas do: what replicas differ by is their data."""


def judge_timings(
    timings: Timings, sizes: Mapping[str, int] | None = None, order: str = "", world_size: int = 0
) -> Verdict:
    """Who slows the job down.

    Args:
        timings: Of as many ranks and steps as there are; at least ten steps.
        sizes: The parallel layout; the one that came with the timings, where it is not given.
        order: In which it counts ranks, empty for Megatron's.
        world_size: Number of ranks, 0 for as many as the timings show.
    """
    if not sizes:
        sizes, order = timings.layout, timings.layout_order
    made = make_case(timings, sizes, order, max(world_size, max(timings.ranks, default=-1) + 1))
    if isinstance(made, Verdict):
        return made
    compared = {"role": by_role(made.rows, made.peers)}
    if made.peers.twins is not None and not outliers.sharp(compared["role"], free(made.peers.role)):
        compared["twins"] = by_twins(made.rows, made.peers)
    if not any(math.isfinite(v) for rows in compared.values() for row in rows for v in row):
        reason = "no rank has a peer with the same work: the layout leaves every rank alone"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=(*made.notes, "ranks that do the same work"))
    verdict = _named(made, compared)
    return replace(verdict, missing=tuple(dict.fromkeys((*verdict.missing, *made.notes))))


def _named(case: Case, compared: Mapping[str, Sequence[Sequence[float]]]) -> Verdict:
    nodes = {at: case.node(at) for at in range(len(case.ranks)) if case.node(at)}
    findings: list[Finding] = []
    taken: set[int] = set()
    # Twins first: to them, data is no excuse.
    order = [by for by in ("twins", "role") if by in compared]
    apart = {"role": free(case.peers.role), "twins": free(case.peers.twins or ())}
    looks = [outliers.steady(compared[by], apart[by], nodes, by) for by in order]
    looks += [outliers.bursts(compared[by], apart[by], by) for by in order]
    for found in looks:
        for finding in sorted(found, key=lambda f: -len(f.members)):
            if not taken & set(finding.members) and not contradicted(finding, compared["role"], apart["role"]):
                findings.append(finding)
                taken.update(finding.members)
    if not findings:
        return Verdict(Conclusion.NONE, wording.nobody(case, _apart(case)))
    if len(taken) > max(1, MANY * len(case.ranks)):
        reason = f"{len(taken)} of {len(case.ranks)} ranks are slower than their peers: too many to be the exception"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=_layout_wanted(case))
    noisy = "twins" in compared and noise(compared["twins"]) <= _QUIET * noise(compared["role"])
    data = [f for f in findings if follows_data(case, f, compared["role"], noisy=noisy)]
    machines = [f for f in findings if f not in data]
    if not machines:
        replicas = sorted({case.peers.replica[at] for f in data for at in f.members})
        reason = (
            f"the ranks of replica {', '.join(map(str, replicas))} are slow on all of its nodes alike "
            f"({wording.percent(max(f.share for f in data))}): its share of the data is larger, no machine is slow"
        )
        return Verdict(Conclusion.NONE, reason)
    if not case.peers.known and any(f.how == "bursts" for f in machines):
        who = name(case.ranks[at] for f in machines for at in f.members)
        reason = f"{who} are slower than the middle in many steps: a machine, or ranks with other work"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=_layout_wanted(case))
    worst = max(f.share for f in machines)
    machines = [f for f in machines if f.share >= _NEXT_TO_WORST * worst]
    if not case.peers.known and (why := may_be_the_program(case, machines, compared["role"])):
        return Verdict(Conclusion.UNDETERMINED, why, missing=_layout_wanted(case))
    return _culprits(case, machines)


def _layout_wanted(case: Case) -> tuple[str, ...]:
    return () if case.peers.known else ("the parallel layout: which ranks do the same work (--layout)",)


def _culprits(case: Case, findings: Sequence[Finding]) -> Verdict:
    by_node: dict[str, list[Finding]] = {}
    for finding in findings:
        for node in dict.fromkeys(case.node(at) for at in finding.members):
            by_node.setdefault(node, []).append(finding)
    cost = wording.cost(case, findings)
    suspects = []
    for node, found in by_node.items():
        here = [at for f in found for at in f.members if case.node(at) == node]
        worst = max(found, key=lambda f: f.share)
        why = wording.why(case, node, here, worst)
        ranks = tuple(sorted(case.ranks[at] for at in here))
        suspect = Suspect(node, ranks, _confidence(case, worst), why, detail=wording.detail(case, worst))
        suspects.append(_first_rank(_group(case, suspect, here, len(by_node))))
    suspects.sort(key=lambda s: -s.confidence)
    reason = joined(s.why for s in suspects)
    return Verdict(Conclusion.CULPRIT, reason, tuple(suspects), detail=cost, missing=_layout_wanted(case))


def _confidence(case: Case, finding: Finding) -> float:
    confidence = CONFIDENCE_STEADY if finding.how == "steady" else CONFIDENCE_BURSTS
    if finding.how == "steady" and finding.steps < 2 * MIN_STEPS:
        confidence -= 0.1
    return confidence if case.peers.known else min(confidence, CONFIDENCE_NO_LAYOUT)


def _group(case: Case, suspect: Suspect, here: Sequence[int], nodes: int) -> Suspect:
    """A whole tensor group that is slow on several nodes: one member holds it up, and nothing tells which."""
    twins = case.peers.twins
    if twins is None or nodes < 2 or len(here) < 2:
        return suspect
    group = {twins[at] for at in here}
    whole = {at for at in range(len(case.ranks)) if twins[at] in group}
    spread_out = len({case.node(at) for at in whole}) > 1
    if not spread_out or len(group) > 1:
        return suspect
    what = "its whole tensor group is slow: compute time may hold waiting inside it"
    return replace(suspect, confidence=min(suspect.confidence, CONFIDENCE_GROUP), detail=what)


def _first_rank(suspect: Suspect) -> Suspect:
    if suspect.ranks != (0,):
        return suspect
    what = "; ".join(filter(None, (suspect.detail, "rank 0 often has work of its own (logs, metrics, checkpoints)")))
    return replace(
        suspect, confidence=min(suspect.confidence, CONFIDENCE_FIRST_RANK), infrastructure=False, detail=what
    )


def _apart(case: Case) -> Counter[int]:
    """How often each rank was the slowest of its role."""
    slowest: Counter[int] = Counter()
    for row in case.rows:
        there = known(row)
        if there:
            slowest[row.index(there[-1])] += 1
    return slowest
