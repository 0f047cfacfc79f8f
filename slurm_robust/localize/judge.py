"""Who is at fault? Evidence in, `Verdict` out; pure.

Votes are asked in order of their strength, and the first that knows is followed: deaths (`exits`); processes that
cannot go on by themselves (`stops`); ranks that PyTorch's flight recorder knows to hold the others (`recorder`), or
NCCL's own service (`ras`); ranks outside the collective that all others wait in (`waiting`); nodes that fell silent or
report a fault (`nodes`); the parallel group in which the waiting ends, where the layout is known (`grouped`). No vote
says *undetermined*, and no node is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.layout import known_groups
from slurm_robust.localize.ranks import name
from slurm_robust.localize.ras import judge_ras
from slurm_robust.localize.recorder.vote import judge_dumps
from slurm_robust.localize.stacks import merge
from slurm_robust.localize.stacks.process_tree import rank_process
from slurm_robust.localize.votes.exits import judge_exits
from slurm_robust.localize.votes.group import judge_groups
from slurm_robust.localize.votes.node_signals import judge_faults, judge_silence
from slurm_robust.localize.votes.outside_collective import judge_waiting
from slurm_robust.localize.votes.recorder_with_stacks import with_recorded, with_stacks, without_workers
from slurm_robust.localize.votes.stopped import judge_stop_signals, judge_stops
from slurm_robust.model import Conclusion, Verdict


def judge(evidence: Evidence) -> Verdict:
    """Weigh everything known about one incident.

    Whatever the conclusion, `classes` holds the stacks of the last capture, and `missing` what was not there.
    """
    verdict = _first_that_knows(evidence)
    missing = dict.fromkeys((*verdict.missing, *_unseen(evidence)))
    classes = merge.classes(evidence.captures[-1]) if evidence.captures else ()
    return replace(verdict, classes=classes, missing=tuple(missing))


def _first_that_knows(evidence: Evidence) -> Verdict:
    said = None
    for vote in _VOTES:
        found = vote(evidence)
        if found is None:
            continue
        # A rank that may have finished explains nothing where something surer does.
        unsure_end = vote is judge_exits and found.conclusion is Conclusion.CULPRIT and not found.corroborated
        if said is None and not unsure_end:
            return found
        if said is not None and (found.corroborated or found.conclusion is Conclusion.NONE):
            return found
        said = said or found
    return said or _NOTHING_KNOWN


def _moves(evidence: Evidence) -> Verdict | None:
    """A rank completed a step, or changed its phase, between the last two captures."""
    if len(evidence.captures) < 2:
        return None
    before, after = evidence.captures[-2:]
    old = {r.rank: r.progress for r in before.ranks}
    for rank in after.ranks:
        was, now = old.get(rank.rank), rank.progress
        if was is not None and now is not None and (was.step < now.step or was.phase != now.phase):
            steps = f"from step {was.step} ({was.phase}) to step {now.step} ({now.phase})"
            return Verdict(Conclusion.NONE, f"training moves: rank {rank.rank} went {steps}")
    return None


def _stopped(evidence: Evidence) -> Verdict | None:
    found = judge_stops(evidence)
    if found is None or found.conclusion is not Conclusion.CULPRIT:
        return found
    return with_recorded(found, _recorded(evidence))


def _recorded(evidence: Evidence) -> Verdict | None:
    """What the recorders know. Where they name nobody, stacks may still know more."""
    found = _dumps(evidence)
    if found is None or found.conclusion is Conclusion.UNDETERMINED:
        return None
    found = without_workers(found, evidence)
    return None if found is None else with_stacks(found, _outside_the_collective(evidence), evidence)


def _recorded_nobody(evidence: Evidence) -> Verdict | None:
    found = _dumps(evidence)
    return found if found is not None and found.conclusion is Conclusion.UNDETERMINED else None


def _dumps(evidence: Evidence) -> Verdict | None:
    if not evidence.recorder:
        return None
    return judge_dumps(tuple(evidence.recorder.values()), evidence.rank_nodes)


def _seen_by_nccl(evidence: Evidence) -> Verdict | None:
    """What NCCL's own service knows. Its processes are ours by their ids, as the last capture saw them."""
    if not evidence.ras:
        return None
    ranks: dict[int, tuple[int, ...]] = {}
    for rank in evidence.captures[-1].ranks if evidence.captures else ():
        process = rank_process(rank)
        if process is not None:
            ranks[process.pid] = (*ranks.get(process.pid, ()), rank.rank)
    found = judge_ras(evidence.ras, ranks, evidence.rank_nodes)
    if found is None or found.conclusion is Conclusion.UNDETERMINED:
        return None
    return with_stacks(found, _outside_the_collective(evidence), evidence)


def _outside_the_collective(evidence: Evidence) -> Verdict | None:
    found = judge_waiting(evidence)
    return found if found is not None and found.conclusion is Conclusion.CULPRIT else None


def _only_victims(evidence: Evidence) -> Verdict | None:
    if not evidence.exits:
        return None
    reason = f"{name(e.rank for e in evidence.exits)} lost a peer, and no rank is known to have died first"
    return Verdict(Conclusion.UNDETERMINED, reason, missing=("the first death: exit codes or output of all ranks",))


_NOTHING_KNOWN = Verdict(Conclusion.UNDETERMINED, "nothing was captured", missing=("stacks of the ranks",))
_VOTES: tuple[Callable[[Evidence], Verdict | None], ...] = (
    judge_exits,
    _moves,
    _stopped,
    _recorded,
    _seen_by_nccl,
    _outside_the_collective,
    judge_silence,
    judge_faults,
    judge_stop_signals,
    _only_victims,
    _recorded_nobody,
    judge_groups,
    judge_waiting,
)


def _unseen(evidence: Evidence) -> tuple[str, ...]:
    """Sentences for a layout that does not fit, and for ranks and nodes that the last capture does not show."""
    wrong = known_groups(evidence)[1]
    if not evidence.captures:
        return (wrong,) if wrong else ()
    last = evidence.captures[-1]
    seen = {r.rank for r in last.ranks} | {e.rank for e in evidence.exits}
    absent = [r for r in range(evidence.world_size) if r not in seen]
    blind = [r.rank for r in last.ranks if r.processes and not any(p.threads for p in r.processes)]
    told = [wrong] if wrong else []
    if absent:
        told.append(f"no capture of {name(absent)}")
    if blind:
        why = next((p.error for r in last.ranks if r.rank == blind[0] for p in r.processes if p.error), "")
        told.append(f"no stack of {name(blind)}" + (f" ({why[:80]})" if why else ""))
    return tuple(told)
