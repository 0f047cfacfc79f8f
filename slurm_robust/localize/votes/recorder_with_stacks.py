"""Votes on recorders (PyTorch's flight recorder, NCCL RAS) together with stacks: names ranks that others wait for.

Recorder and stacks are independent witnesses: the recorder shows which rank never joined, and that rank's stack shows
why. If both name the same node, the verdict is surer than each alone. If they differ, the recorder decides, and the
detail says what the stack shows. A recorder knows that a rank is absent, but not why: a rank whose stack stands in code
of its own may be at work there, so the evidence is weak.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slurm_robust.core.model import Conclusion, Grade, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.localize.evidence import Evidence, RankCapture, StackFrame
from slurm_robust.localize.grades import Ground, at_least, weakest
from slurm_robust.localize.recorder.dump import HOST_BACKENDS
from slurm_robust.localize.stacks.blocking import blocking
from slurm_robust.localize.stacks.frames import own_frames, short_function
from slurm_robust.localize.stacks.known_names import Kind
from slurm_robust.localize.stacks.motion import Motion, RankMotion, rests_unread, stillness
from slurm_robust.localize.stacks.place import slow_around
from slurm_robust.localize.stacks.process_tree import rank_frames, rank_place, rank_process, stopped, uninterruptible
from slurm_robust.localize.votes.flight_recorder import judge_dumps
from slurm_robust.localize.votes.nccl_ras import judge_ras, unnamed_laggards
from slurm_robust.localize.votes.nobody_works import recorder_stands
from slurm_robust.localize.votes.node_signals import judge_faults
from slurm_robust.localize.votes.outside_collective import judge_outside, judge_waiting
from slurm_robust.localize.votes.stopped import judge_stops

MAX_CONFIDENCE = 0.97
"""Two witnesses are not certainty: both may see the victim of a third."""


def judge_stops_with_recorder(evidence: Evidence) -> Verdict | None:
    """Return a verdict on stopped processes, and whom else the recorder names; None if nothing is stopped."""
    found = judge_stops(evidence)
    if found is None or found.conclusion is not Conclusion.CULPRIT:
        return found
    return with_recorded(found, judge_recorder(evidence))


def judge_recorder(evidence: Evidence) -> Verdict | None:
    """Return ranks that the flight recorder knows to hold the others; None if it names none: stacks may know more."""
    found, ground = _recorded(evidence)
    return found if ground is Ground.RECORDER else None


def judge_left_behind(evidence: Evidence) -> Verdict | None:
    """Return ranks that the recorder shows at a link that may be broken, if no other view says more; else None."""
    found, ground = _recorded(evidence)
    return found if ground is Ground.LEFT_BEHIND else None


def _recorded(evidence: Evidence) -> tuple[Verdict | None, Ground]:
    found = judge_dumps(tuple(evidence.recorder.values()), evidence.rank_nodes)
    if found is None or found.conclusion is Conclusion.UNDETERMINED:
        return None, Ground.NOTHING
    found = without_workers(found, evidence)
    if found is None:
        return None, Ground.NOTHING
    left_behind, stacks = _none_is_of_nodes(found), judge_outside(evidence)
    ground = Ground.LEFT_BEHIND if left_behind else Ground.RECORDER
    found = with_stacks(found, stacks, evidence)
    if left_behind and _second_view(found, stacks, evidence):
        found = replace(found, suspects=tuple(replace(s, infrastructure=True) for s in found.suspects))
        ground = Ground.RECORDER
    return _graded(found, evidence, ground, twice=recorder_stands(evidence)), ground


def _none_is_of_nodes(found: Verdict) -> bool:
    return found.conclusion is Conclusion.CULPRIT and not any(s.infrastructure for s in found.suspects)


def _second_view(found: Verdict, stacks: Verdict | None, evidence: Evidence) -> bool:
    """Return whether NCCL, the node itself or the kernel's D state names the nodes of the ranks left behind, too."""
    views = (_judged_ras(evidence), judge_faults(evidence), stacks)
    sure = (view for view in views if view is not None and (view is not stacks or at_least(view.grade, Grade.STRONG)))
    nodes = {s.node for view in sure for s in view.suspects if s.node}
    return bool(nodes) and {s.node for s in found.suspects} <= nodes


def judge_recorder_undecided(evidence: Evidence) -> Verdict | None:
    """Return why the flight recorder names no rank; None if it names one, or if there is no recorder."""
    found = judge_dumps(tuple(evidence.recorder.values()), evidence.rank_nodes)
    return found if found is not None and found.conclusion is Conclusion.UNDETERMINED else None


def judge_ras_with_stacks(evidence: Evidence) -> Verdict | None:
    """Return ranks that NCCL's RAS service names; None if it names none.

    The process ids of the service are matched to ranks by the last capture.
    """
    found = _judged_ras(evidence)
    if found is None or found.conclusion is Conclusion.UNDETERMINED:
        return None
    found = with_stacks(found, judge_outside(evidence), evidence)
    return _graded(found, evidence, Ground.RAS, twice=len(evidence.ras) > 1)


def judge_ras_undecided(evidence: Evidence) -> Verdict | None:
    """Return why NCCL's RAS service names no rank; None if it shows nothing wrong, or if stacks show motion."""
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
    """Return a recorder's verdict combined with the votes on stacks (None if they do not say anything)."""
    if recorded.conclusion is not Conclusion.CULPRIT or not evidence.captures:
        return recorded
    seen = {r.rank: r for r in evidence.captures[-1].ranks}
    named = {s.node: s for s in stacks.suspects} if stacks is not None else {}
    suspects = tuple(_joined(s, named.get(s.node), seen, evidence) for s in recorded.suspects)
    suspects += tuple(named[node] for node in sorted(_more(suspects, named)))
    agreed = stacks is not None and {s.node for s in suspects if s.node} == {n for n in named if n}
    if stacks is None or not agreed or not named:
        return replace(recorded, suspects=suspects)
    detail = "; ".join(filter(None, (recorded.detail, "the stacks agree", stacks.detail)))
    missing = tuple(dict.fromkeys((*recorded.missing, *stacks.missing)))
    return replace(recorded, suspects=suspects, detail=detail, missing=missing, corroborated=stacks.corroborated)


def _graded(found: Verdict, evidence: Evidence, ground: Ground, *, twice: bool) -> Verdict:
    """Return the verdict with its grade: the recorder's own, or a weaker one if a suspect may be at work."""
    seen = {r.rank: r for r in evidence.captures[-1].ranks} if evidence.captures else {}
    grounds = [ground, *(_why_absent(seen[r], evidence, ground) for s in found.suspects for r in s.ranks if r in seen)]
    return replace(found, grade=weakest(grounds), corroborated=found.corroborated or twice)


def _why_absent(rank: RankCapture, evidence: Evidence, ground: Ground) -> Ground:
    """Return the kind of evidence, from the stack of a rank that the recorder names."""
    where, held = rank_place(rank), blocking(rank)
    if stopped(rank) is not None:
        return Ground.STOPPED
    if held.ground in (Ground.UNINTERRUPTIBLE, Ground.ENDED) or where.waits_for_peers:
        return ground
    if held.ground is Ground.SLOW_STORAGE:
        return held.ground
    if where.kind is Kind.UNKNOWN:
        return ground if rests_unread(rank.rank, evidence.captures) else Ground.OWN_CODE
    dump = evidence.recorder.get(rank.rank)
    # Its device holds an operation: the host waits for the operation, at any place of the program.
    return ground if dump is not None and dump.pending and where.kind is Kind.USER else Ground.OWN_CODE


def with_recorded(stopped: Verdict, recorded: Verdict | None) -> Verdict:
    """Return the verdict on stopped processes, with other ranks that the recorder names, if the two agree.

    Stopped processes are acted on as before; the nodes of the other ranks are only left if the failure comes again.
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
    """Return the recorder's verdict without suspects that are at work elsewhere; None if no suspect is left.

    If all wait at a barrier for a rank that evaluates or saves, it looks like a hang to the recorder. A rank without a
    stack counts as at work if other ranks that the recorder names are at work, and if its peers wait in a barrier or at
    the end of such work.
    """
    if recorded.conclusion is not Conclusion.CULPRIT or not evidence.captures:
        return recorded
    seen = {r.rank: r for r in evidence.captures[-1].ranks}
    ranks = {rank for suspect in recorded.suspects for rank in suspect.ranks}
    observed = stillness(evidence.captures[-2:], ranks)
    # A rank that only uses a processor at one place may be a host that waits for its device, unless it has no device.
    by_hosts = _carried_by_hosts(evidence)
    moved = {r for r, still in observed.items() if still.last is not None and _moved(still.last, by_hosts=by_hosts)}
    slow = {rank for rank in ranks if rank in seen and _slow_by_nature(seen[rank])}
    working = moved | (slow - _in_kernel_for_long(evidence, (seen[rank] for rank in slow)))
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
    return bool(backends) and backends <= HOST_BACKENDS


def _slow_by_nature(rank: RankCapture) -> bool:
    announced = rank.progress is not None and rank.progress.phase != "train"
    return (announced or bool(rank_place(rank).slow_by_nature)) and stopped(rank) is None


def _in_kernel_for_long(evidence: Evidence, ranks: Iterable[RankCapture]) -> set[int]:
    """Return ranks in D state, for longer than a save to slow storage explains."""
    patience = {r.rank: blocking(r).patience for r in ranks if uninterruptible(r) is not None}
    still_for = stillness(evidence.captures, patience)
    return {rank for rank, needed in patience.items() if needed is not None and needed.met_by(still_for[rank])}


def _unread(rank: RankCapture) -> bool:
    """Return whether the rank's process exists and seems to run, but its stack could not be read."""
    return bool(rank.processes) and rank_place(rank).kind is Kind.UNKNOWN and blocking(rank).patience is None


def _wait_for_slow_work(peers: Iterable[RankCapture]) -> bool:
    """Return whether most peers with a stack wait in a barrier, or at the end of a checkpoint or an evaluation.

    A program that calls a barrier lets all ranks wait until one rank's work is done, mostly rank 0's.
    """
    frames = [found for found in map(rank_frames, peers) if found is not None]
    around = [bool(slow_around(found, "")) or _in_barrier(found) for found in frames]
    return sum(around) > len(around) / 2


def _in_barrier(frames: tuple[StackFrame, ...]) -> bool:
    own = own_frames(frames)
    return bool(own) and short_function(own[-1].function) in ("barrier", "monitored_barrier")


def _more(suspects: tuple[Suspect, ...], named: dict[str, Suspect]) -> set[str]:
    """Return nodes that only the stacks name, if they also name all of the recorder's, and for as good a reason.

    Of two ranks that are held at once, the recorder only knows the rank that the other one waits for.
    """
    recorded = {s.node for s in suspects}
    if not recorded <= set(named):
        return set()
    weakest = all(named[node].infrastructure for node in recorded)
    return {node for node, suspect in named.items() if node not in recorded and suspect.infrastructure >= weakest}


def _joined(suspect: Suspect, by_stacks: Suspect | None, seen: dict[int, RankCapture], evidence: Evidence) -> Suspect:
    """Return the suspect with what its rank's stack shows; surer if the stacks name its node, too."""
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
        at_work = _why_absent(rank, evidence, Ground.RECORDER) in (Ground.OWN_CODE, Ground.SLOW_STORAGE)
        if held.by_loader or at_work:
            infrastructure = held.infrastructure
    surer = round(min(confidence, MAX_CONFIDENCE), 3)
    return replace(suspect, confidence=surer, infrastructure=infrastructure, detail="; ".join(filter(None, details)))
