"""Judges who is at fault: evidence in, `Verdict` out; pure.

`VOTES` is the whole rule: each vote reads one kind of observation. The votes are asked from the strongest to the
weakest, and the first vote with an answer decides. Without an answer the verdict is *undetermined*, and no node is
named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.layout import known_groups
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks import merge
from slurm_robust.localize.votes.alone import judge_alone
from slurm_robust.localize.votes.dead_mounts_beside import with_dead_mounts
from slurm_robust.localize.votes.endless_work import judge_endless_work
from slurm_robust.localize.votes.exits import judge_exits, judge_lost_peers
from slurm_robust.localize.votes.group import judge_groups
from slurm_robust.localize.votes.never_started import judge_never_started
from slurm_robust.localize.votes.nobody_works import with_nobody_at_work
from slurm_robust.localize.votes.node_signals import judge_faults, judge_lost_all, judge_silence
from slurm_robust.localize.votes.outside_collective import judge_outside, judge_waiting
from slurm_robust.localize.votes.progress import judge_progress, without_finished
from slurm_robust.localize.votes.recorder_with_stacks import (
    judge_left_behind,
    judge_ras_undecided,
    judge_ras_with_stacks,
    judge_recorder,
    judge_recorder_undecided,
    judge_stops_with_recorder,
)

Vote = Callable[[Evidence], Verdict | None]
VOTES: tuple[Vote, ...] = (
    judge_lost_all,  # all ranks of a node are gone without a known end: their node
    judge_exits,  # ranks ended: the rank that died first, its node, or the program's own error
    judge_progress,  # a step was completed: no suspect
    judge_stops_with_recorder,  # processes that a signal or a freezer stopped: their nodes
    judge_recorder,  # PyTorch's flight recorder: ranks that all others wait for
    judge_ras_with_stacks,  # NCCL's RAS service: ranks that do not answer, or launched less than their peers
    judge_outside,  # stacks: the few ranks outside the collective that all others wait in
    judge_silence,  # nodes that do not answer, or that Slurm calls down
    judge_faults,  # nodes that report a fault of their own while nothing moves
    judge_lost_peers,  # ranks only died of a lost peer: no suspect
    judge_never_started,  # ranks that have no process yet, while all others wait in the start-up
    judge_endless_work,  # ranks that compute at one place for long, while all others wait in a collective
    judge_alone,  # the only rank of a job, in D state
    judge_left_behind,  # the flight recorder: ranks left in what their peers completed: a device, or a link
    judge_recorder_undecided,  # the flight recorder, if it names no rank: why
    judge_ras_undecided,  # NCCL's RAS service, if it names no rank: why
    judge_groups,  # all wait: the parallel group in which the waiting ends
    judge_waiting,  # stacks, if they name no rank: why
)
"""The votes in order of the strength of their observations, and what each vote names."""
_NOTHING_KNOWN = Verdict(Conclusion.UNDETERMINED, "no evidence was captured", missing=("stacks of the ranks",))


def judge(evidence: Evidence) -> Verdict:
    """Weigh everything known about one incident.

    Each vote grades its answer. An answer that only says why no node can be named is relied on, too, if no rank works.
    With any conclusion, `classes` holds the stacks of the last capture, and `missing` the evidence that was absent.
    """
    evidence = without_finished(evidence)
    verdict = with_dead_mounts(with_nobody_at_work(_first_answer(evidence), evidence), evidence)
    missing = dict.fromkeys((*verdict.missing, *_unseen(evidence)))
    classes = merge.classes(evidence.captures[-1]) if evidence.captures else ()
    return replace(verdict, classes=classes, missing=tuple(missing))


def _first_answer(evidence: Evidence) -> Verdict:
    unsure_exit = None
    for vote in VOTES:
        found = vote(evidence)
        if found is None:
            continue
        if unsure_exit is not None:
            # A rank that vanished may have finished: a surer vote goes first.
            if found.corroborated or found.conclusion is Conclusion.NONE:
                return found
        elif vote in (judge_lost_all, judge_exits) and _unsure(found):
            unsure_exit = found
        else:
            return found
    return unsure_exit or _NOTHING_KNOWN


def _unsure(found: Verdict) -> bool:
    return found.conclusion is Conclusion.CULPRIT and not found.corroborated


def _unseen(evidence: Evidence) -> tuple[str, ...]:
    """Return sentences for a layout that does not fit, and for ranks that the last capture does not show."""
    problem = known_groups(evidence)[1]
    sentences = [problem] if problem else []
    if not evidence.captures:
        return tuple(sentences)
    last = evidence.captures[-1]
    seen = {r.rank for r in last.ranks} | {e.rank for e in evidence.exits}
    absent = [r for r in range(evidence.world_size) if r not in seen]
    blind = [r.rank for r in last.ranks if r.processes and not any(p.threads for p in r.processes)]
    if absent:
        sentences.append(f"no capture of {name(absent)}")
    if blind:
        why = next((p.error for r in last.ranks if r.rank == blind[0] for p in r.processes if p.error), "")
        sentences.append(f"no stack of {name(blind)}" + (f" ({why[:80]})" if why else ""))
    return tuple(sentences)
