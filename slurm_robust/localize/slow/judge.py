"""Which machine is slow? Step timings in, `Verdict` out; pure.

A slow machine is slow whatever the data: its ranks are slower than those that do the same work, step after step, by
the same share. What all ranks of a pipeline stage have in common, what follows a replica's data, and what strikes
another rank each step, is the program's. Where ranks end their steps together and nothing tells their own work from
their waiting, nobody can be named.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_robust.localize.ranks import name
from slurm_robust.localize.slow import find, told
from slurm_robust.localize.slow.effects import by_role, by_twins, noise, summed, usable_steps
from slurm_robust.localize.slow.find import MIN_STEPS, Finding
from slurm_robust.localize.slow.peers import Peers, free, peers_of
from slurm_robust.localize.slow.robust import known, median
from slurm_robust.localize.slow.timings import Timings
from slurm_robust.model import Conclusion, Suspect, Verdict
from slurm_robust.words import joined

CONFIDENCE_STEADY = 0.9
CONFIDENCE_BURSTS = 0.75
CONFIDENCE_NO_LAYOUT = 0.6
CONFIDENCE_GROUP = 0.4
CONFIDENCE_FIRST_RANK = 0.5
"""Rank 0 often has work of its own: logs, metrics, checkpoints."""
MANY = 0.25
"""More than this share of the ranks cannot be outliers among the others."""
_ROW_SHARE = 0.5
_LOCKSTEP_STEPS = 1.5
"""Ranks that synchronise are never further apart than about a step."""
_REPLICA_SHARE = 0.5
_NEXT_TO_WORST = 0.35
"""What is slow by less than this share of the slowest is not named beside it: it shows once that is gone."""
_ALONE = 0.5
"""Without a layout, nobody else may be slow by this share of the one that is named."""
_TWIN_SHARE, _DOUBT = 0.5, 1.0
"""Of what a rank is slower than its twins, this much must show against its role, give or take its scale."""
_QUIET = 0.5
"""Twins that differ by less than this share of what replicas do: what replicas differ by is their data."""


@dataclass(frozen=True)
class Case:
    """What is judged: usable ranks and steps, and who is whose peer.

    Attributes:
        rows: A row a usable step, a value a usable rank: its own work, seconds.
        ranks: Their numbers.
        steps: The usable steps' numbers.
    """

    rows: tuple[array[float], ...]
    ranks: tuple[int, ...]
    nodes: Mapping[int, str]
    steps: tuple[int, ...]
    peers: Peers
    notes: tuple[str, ...] = ()

    def node(self, at: int) -> str:
        """Node of a place in the table, empty where not told."""
        return self.nodes.get(self.ranks[at], "")


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
    made = _case(timings, sizes, order, max(world_size, max(timings.ranks, default=-1) + 1))
    if isinstance(made, Verdict):
        return made
    compared = {"role": by_role(made.rows, made.peers)}
    if made.peers.twins is not None and not find.sharp(compared["role"], free(made.peers.role)):
        compared["twins"] = by_twins(made.rows, made.peers)
    if not any(math.isfinite(v) for rows in compared.values() for row in rows for v in row):
        reason = "no rank has a peer with the same work: the layout leaves every rank alone"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=(*made.notes, "ranks that do the same work"))
    verdict = _named(made, compared)
    return replace(verdict, missing=tuple(dict.fromkeys((*verdict.missing, *made.notes))))


# -- what can be judged ---------------------------------------------------------------------------------------------


def _case(timings: Timings, sizes: Mapping[str, int], order: str, world: int) -> Case | Verdict:
    notes: list[str] = []
    rows, wanted = timings.compute, "the time that each rank computes, apart from waiting (compute_s)"
    if not timings.has_compute:
        rows = timings.total
        if in_lockstep(rows):
            reason = "all ranks take the same time for a step, since they wait for each other: who makes them wait?"
            return Verdict(Conclusion.UNDETERMINED, reason, missing=(wanted,))
        notes.append(wanted + ": the totals differ between ranks, and were taken for it")
    counts = [sum(map(math.isfinite, column)) for column in zip(*rows, strict=True)]
    enough = [at for at, count in enumerate(counts) if count >= max(MIN_STEPS, _ROW_SHARE * max(counts))]
    if len(enough) < 2:
        few = f"{max(counts, default=0)} steps of {len(counts)} ranks"
        reason = f"too little to compare: {few} (at least {MIN_STEPS} steps of two ranks are needed)"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("timings of more steps",))
    lacking = sorted(set(range(world)) - {timings.ranks[at] for at in enough})
    if lacking:
        notes.append(f"enough timings of {name(lacking)}")
    if len(enough) < len(counts):
        rows = tuple(array("d", [row[at] for at in enough]) for row in rows)
    ranks = tuple(timings.ranks[at] for at in enough)
    peers = peers_of(ranks, sizes, order, world)
    if peers.problem:
        notes.append(peers.problem)
    usable = usable_steps(rows)
    if len(usable) < MIN_STEPS:
        reason = f"only {len(usable)} of {len(rows)} steps are alike: too few to compare (at least {MIN_STEPS})"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("timings of more steps",))
    kept = tuple(rows[at] for at in usable)
    return Case(kept, ranks, timings.nodes, tuple(timings.steps[at] for at in usable), peers, tuple(notes))


def in_lockstep(totals: Sequence[Sequence[float]]) -> bool:
    """Whether the totals are those of ranks that wait for each other: none ever gets ahead by more than a step."""
    complete = [row for row in zip(*totals, strict=True) if all(map(math.isfinite, row))]
    if len(complete) < 2:
        return True
    sums = [float(sum(row)) for row in complete]
    return max(sums) - min(sums) <= _LOCKSTEP_STEPS * median(v for row in complete for v in row)


# -- who stands out -------------------------------------------------------------------------------------------------


def _named(case: Case, compared: Mapping[str, Sequence[Sequence[float]]]) -> Verdict:
    nodes = {at: case.node(at) for at in range(len(case.ranks)) if case.node(at)}
    findings: list[Finding] = []
    taken: set[int] = set()
    # Twins first: to them, data is no excuse.
    order = [by for by in ("twins", "role") if by in compared]
    apart = {"role": free(case.peers.role), "twins": free(case.peers.twins or ())}
    looks = [find.steady(compared[by], apart[by], nodes, by) for by in order]
    looks += [find.bursts(compared[by], apart[by], by) for by in order]
    for found in looks:
        for finding in sorted(found, key=lambda f: -len(f.members)):
            if not taken & set(finding.members) and not _contradicted(finding, compared["role"], apart["role"]):
                findings.append(finding)
                taken.update(finding.members)
    if not findings:
        return Verdict(Conclusion.NONE, told.nobody(case, _apart(case)))
    if len(taken) > max(1, MANY * len(case.ranks)):
        reason = f"{len(taken)} of {len(case.ranks)} ranks are slower than their peers: too many to be the exception"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=_layout_wanted(case))
    noisy = "twins" in compared and noise(compared["twins"]) <= _QUIET * noise(compared["role"])
    data = [f for f in findings if _follows_data(case, f, compared["role"], noisy=noisy)]
    machines = [f for f in findings if f not in data]
    if not machines:
        replicas = sorted({case.peers.replica[at] for f in data for at in f.members})
        reason = (
            f"the ranks of replica {', '.join(map(str, replicas))} are slow on all of its nodes alike "
            f"({told.percent(max(f.share for f in data))}): its share of the data is larger, no machine is slow"
        )
        return Verdict(Conclusion.NONE, reason)
    if not case.peers.known and any(f.how == "bursts" for f in machines):
        who = name(case.ranks[at] for f in machines for at in f.members)
        reason = f"{who} are slower than the middle in many steps: a machine, or ranks with other work"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=_layout_wanted(case))
    worst = max(f.share for f in machines)
    machines = [f for f in machines if f.share >= _NEXT_TO_WORST * worst]
    if not case.peers.known and (why := _may_be_the_program(case, machines, compared["role"])):
        return Verdict(Conclusion.UNDETERMINED, why, missing=_layout_wanted(case))
    return _culprits(case, machines)


def _contradicted(finding: Finding, rows: Sequence[Sequence[float]], count: int) -> bool:
    """Whether a rank that is slower than its twins is no slower than its role: then a twin is fast."""
    if finding.by == "role" or finding.how != "steady":
        return False
    effects = summed(rows, count, finding.seen_from)
    level = median(effects.level[at] for at in finding.members)
    return level + _DOUBT * effects.scale < _TWIN_SHARE * finding.share


def _layout_wanted(case: Case) -> tuple[str, ...]:
    return () if case.peers.known else ("the parallel layout: which ranks do the same work (--layout)",)


def _follows_data(case: Case, finding: Finding, rows: Sequence[Sequence[float]], *, noisy: bool) -> bool:
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


def _may_be_the_program(case: Case, findings: Sequence[Finding], rows: Sequence[Sequence[float]]) -> str:
    """Without a layout: why the slow ranks may have other work than the rest; empty where they hardly can."""
    members = {at for f in findings for at in f.members}
    first_slow = min(f.first for f in findings)
    least = min(f.share for f in findings)
    others = known(median(row[first_slow:]) for at, row in enumerate(rows) if at not in members)
    slow = sorted(case.ranks[at] for at in members)
    if others and others[-1] > _ALONE * least:
        high = sum(v > _ALONE * least for v in others)
        return f"{name(slow)} are slower by {told.percent(least)}, and {high} others nearly so: work may differ by rank"
    if first_slow:
        return ""  # the layout does not change in the middle
    first, last = case.ranks[0], case.ranks[-1]
    if slow[-1] != last and (slow[0] != first or len(slow) == 1):
        return ""
    end = "last" if slow[-1] == last else "first"
    share = told.percent(max(f.share for f in findings))
    return f"{name(slow)} are slower by {share}: a slow machine, or the {end} pipeline stage with more to do"


def _culprits(case: Case, findings: Sequence[Finding]) -> Verdict:
    by_node: dict[str, list[Finding]] = {}
    for finding in findings:
        for node in dict.fromkeys(case.node(at) for at in finding.members):
            by_node.setdefault(node, []).append(finding)
    cost = told.cost(case, findings)
    suspects = []
    for node, found in by_node.items():
        here = [at for f in found for at in f.members if case.node(at) == node]
        worst = max(found, key=lambda f: f.share)
        why = told.why(case, node, here, worst)
        ranks = tuple(sorted(case.ranks[at] for at in here))
        suspect = Suspect(node, ranks, _confidence(case, worst), why, detail=told.detail(case, worst))
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
