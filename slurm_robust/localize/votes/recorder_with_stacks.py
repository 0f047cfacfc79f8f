"""Votes on recorders (PyTorch's flight recorder, NCCL RAS) together with stacks: names the ranks that others wait for.

Recorder and stacks are independent witnesses: the recorder shows who never joined, that rank's stack shows why. Where
both name the same node, the verdict is surer than either, and is acted on as soon as the stacks alone would be. Where
they differ, the recorder decides, and the detail says what the stack shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slurm_robust.localize.evidence import Evidence, RankCapture, StackFrame
from slurm_robust.localize.stacks.blocking import blocking
from slurm_robust.localize.stacks.frames import own_frames, short_function
from slurm_robust.localize.stacks.known_names import Kind
from slurm_robust.localize.stacks.motion import Motion, RankMotion, stillness
from slurm_robust.localize.stacks.place import slow_around
from slurm_robust.localize.stacks.process_tree import rank_frames, rank_place, rank_process, stopped
from slurm_robust.localize.votes.flight_recorder import judge_dumps
from slurm_robust.localize.votes.nccl_ras import judge_ras, unnamed_laggards
from slurm_robust.localize.votes.outside_collective import judge_outside, judge_waiting
from slurm_robust.localize.votes.stopped import judge_stops
from slurm_robust.model import Conclusion, Suspect, Verdict
from slurm_robust.text import joined

MAX_CONFIDENCE = 0.97
"""Two witnesses are not certainty: both may see the victim of a third."""
_HOST_BACKENDS = frozenset({"gloo", "mpi"})
"""Operations that no device takes part in."""


def judge_stops_with_recorder(evidence: Evidence) -> Verdict | None:
    """Stopped processes, and whom else the recorder names; None where nothing is stopped."""
    found = judge_stops(evidence)
    if found is None or found.conclusion is not Conclusion.CULPRIT:
        return found
    return with_recorded(found, judge_recorder(evidence))


def judge_recorder(evidence: Evidence) -> Verdict | None:
    """Ranks that the flight recorder knows to hold the others; None where it names nobody: stacks may know more."""
    found = judge_dumps(tuple(evidence.recorder.values()), evidence.rank_nodes)
    if found is None or found.conclusion is Conclusion.UNDETERMINED:
        return None
    found = without_workers(found, evidence)
    return None if found is None else with_stacks(found, judge_outside(evidence), evidence)


def judge_recorder_undecided(evidence: Evidence) -> Verdict | None:
    """Why the flight recorder names nobody; None where it names somebody, or there is none."""
    found = judge_dumps(tuple(evidence.recorder.values()), evidence.rank_nodes)
    return found if found is not None and found.conclusion is Conclusion.UNDETERMINED else None


def judge_ras_with_stacks(evidence: Evidence) -> Verdict | None:
    """Ranks that NCCL's RAS service names; None where it names nobody.

    Its process ids are matched to ranks by the last capture.
    """
    found = _judged_ras(evidence)
    if found is None or found.conclusion is Conclusion.UNDETERMINED:
        return None
    return with_stacks(found, judge_outside(evidence), evidence)


def judge_ras_undecided(evidence: Evidence) -> Verdict | None:
    """Why NCCL's RAS service names nobody; None where it shows nothing wrong, or the stacks show that ranks move."""
    found = _judged_ras(evidence)
    if found is None and (laggards := unnamed_laggards(evidence.ras)):
        wanted = ("the flight recorder, or RAS as JSON (NCCL 2.28.7 and later): which ranks are behind",)
        found = Verdict(Conclusion.UNDETERMINED, laggards, missing=wanted)
    if found is None or found.conclusion is not Conclusion.UNDETERMINED:
        return None
    stacks = judge_waiting(evidence)
    return None if stacks is not None and stacks.conclusion is not Conclusion.UNDETERMINED else found


def _judged_ras(evidence: Evidence) -> Verdict | None:
    if not evidence.ras:
        return None
    ranks: dict[int, tuple[int, ...]] = {}
    for rank in evidence.captures[-1].ranks if evidence.captures else ():
        process = rank_process(rank)
        if process is not None:
            ranks[process.pid] = (*ranks.get(process.pid, ()), rank.rank)
    return judge_ras(evidence.ras, ranks, evidence.rank_nodes)


def with_stacks(recorded: Verdict, stacks: Verdict | None, evidence: Evidence) -> Verdict:
    """A recorder's verdict with what the votes on stacks say (None where they say nothing)."""
    if recorded.conclusion is not Conclusion.CULPRIT or not evidence.captures:
        return recorded
    seen = {r.rank: r for r in evidence.captures[-1].ranks}
    named = {s.node: s for s in stacks.suspects} if stacks is not None else {}
    suspects = tuple(_joined(s, named.get(s.node), seen) for s in recorded.suspects)
    suspects += tuple(named[node] for node in sorted(_more(suspects, named)))
    agreed = stacks is not None and {s.node for s in suspects if s.node} == {n for n in named if n}
    if stacks is None or not agreed or not named:
        return replace(recorded, suspects=suspects)
    detail = "; ".join(filter(None, (recorded.detail, "the stacks agree", stacks.detail)))
    missing = tuple(dict.fromkeys((*recorded.missing, *stacks.missing)))
    return replace(recorded, suspects=suspects, detail=detail, missing=missing, corroborated=stacks.corroborated)


def with_recorded(stopped: Verdict, recorded: Verdict | None) -> Verdict:
    """The verdict on stopped processes, and who else is waited for by the recorder's word, where that agrees with it.

    What is stopped is acted on as before; the others are named, and their nodes are left when it comes again.
    """
    if recorded is None or recorded.conclusion is not Conclusion.CULPRIT:
        return stopped
    held = {s.node for s in stopped.suspects}
    if not held < {s.node for s in recorded.suspects}:
        return stopped
    more = tuple(replace(s, infrastructure=False) for s in recorded.suspects if s.node not in held)
    detail = "; ".join(filter(None, (stopped.detail, f"the recorder names {joined(s.why for s in more)} too")))
    return replace(stopped, suspects=(*stopped.suspects, *more), detail=detail)


def without_workers(recorded: Verdict, evidence: Evidence) -> Verdict | None:
    """The recorder's verdict without suspects that are at work elsewhere; None where nobody is left.

    All wait at a barrier for the rank that evaluates or saves: to the recorder that looks like a hang. A rank whose
    stack is not there counts as at work where others that the recorder names are, and where the peers wait in a barrier
    or at the end of such work.
    """
    if recorded.conclusion is not Conclusion.CULPRIT or not evidence.captures:
        return recorded
    seen = {r.rank: r for r in evidence.captures[-1].ranks}
    ranks = {rank for suspect in recorded.suspects for rank in suspect.ranks}
    observed = stillness(evidence.captures[-2:], ranks)
    # One that only uses a processor where it stands may be a host that waits for its device, unless there is none.
    by_hosts = _carried_by_hosts(evidence)
    moved = {r for r, still in observed.items() if still.last is not None and _moved(still.last, by_hosts=by_hosts)}
    working = {rank for rank in ranks if rank in moved or (rank in seen and _slow_by_nature(seen[rank]))}
    if working or _wait_for_slow_work(r for r in seen.values() if r.rank not in ranks):
        working |= {rank for rank in ranks if rank not in seen or _unread(seen[rank])}
    left = tuple(s for s in recorded.suspects if not s.ranks or not working >= set(s.ranks))
    if len(left) == len(recorded.suspects):
        return recorded
    return replace(recorded, suspects=left, reason=joined(s.why for s in left)) if left else None


def _moved(last: RankMotion, *, by_hosts: bool) -> bool:
    return by_hosts if last.busy else last.motion is Motion.MOVING


def _carried_by_hosts(evidence: Evidence) -> bool:
    backends = {op.backend for dump in evidence.recorder.values() for op in dump.pending}
    return bool(backends) and backends <= _HOST_BACKENDS


def _slow_by_nature(rank: RankCapture) -> bool:
    announced = rank.progress is not None and rank.progress.phase != "train"
    return (announced or bool(rank_place(rank).slow_by_nature)) and stopped(rank) is None


def _unread(rank: RankCapture) -> bool:
    """Its process is there, and runs for all that is known, and its stack could not be read."""
    return bool(rank.processes) and rank_place(rank).kind is Kind.UNKNOWN and blocking(rank).patience is None


def _wait_for_slow_work(peers: Iterable[RankCapture]) -> bool:
    """Most of those whose stack is there wait at the end of a checkpoint, an evaluation and the like, or in a barrier.

    A program that calls a barrier lets all wait until somebody's work is done, mostly rank 0's.
    """
    frames = [found for found in map(rank_frames, peers) if found is not None]
    around = [bool(slow_around(found, "")) or _in_barrier(found) for found in frames]
    return sum(around) > len(around) / 2


def _in_barrier(frames: tuple[StackFrame, ...]) -> bool:
    own = own_frames(frames)
    return bool(own) and short_function(own[-1].function) in ("barrier", "monitored_barrier")


def _more(suspects: tuple[Suspect, ...], named: dict[str, Suspect]) -> set[str]:
    """Nodes that only the stacks name, where they name all of the recorder's too, and for no weaker sort of reason.

    Of two ranks that are held at once the recorder knows only the one that the other waits for.
    """
    recorded = {s.node for s in suspects}
    if not recorded <= set(named):
        return set()
    weakest = all(named[node].infrastructure for node in recorded)
    return {node for node, suspect in named.items() if node not in recorded and suspect.infrastructure >= weakest}


def _joined(suspect: Suspect, by_stacks: Suspect | None, seen: dict[int, RankCapture]) -> Suspect:
    """The suspect with what its rank's stack shows; surer where the stacks name its node too."""
    rank = next((seen[r] for r in suspect.ranks if r in seen), None)
    details = [suspect.detail]
    confidence, infrastructure = suspect.confidence, suspect.infrastructure
    if by_stacks is not None:
        details += [by_stacks.why, by_stacks.detail]
        confidence = 1 - (1 - suspect.confidence) * (1 - by_stacks.confidence)
        infrastructure = by_stacks.infrastructure
    elif rank is not None:
        where, held = rank_place(rank), blocking(rank)
        details.append(f"its stack waits at {where.label}" if where.waits_for_peers else held.what)
        if held.by_loader:
            infrastructure = held.infrastructure
    surer = round(min(confidence, MAX_CONFIDENCE), 3)
    return replace(suspect, confidence=surer, infrastructure=infrastructure, detail="; ".join(filter(None, details)))
