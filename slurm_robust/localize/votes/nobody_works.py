"""Recognises a deadlock: all ranks wait for each other or for their device, and nothing moves.

In a slow program some rank is at work: it is in code of its own, its stack moves, or bytes are on their way. In a
deadlock no rank is. That does not tell who is at fault, so it makes a verdict surer, but does not name a suspect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from slurm_robust.core.model import Conclusion, Grade, Verdict
from slurm_robust.localize.evidence import Capture, CapturedProcess, Evidence, RankCapture
from slurm_robust.localize.grades import Ground
from slurm_robust.localize.ranks import name
from slurm_robust.localize.recorder.dump import RankDump
from slurm_robust.localize.stacks.blocking import HELD
from slurm_robust.localize.stacks.known_names import Kind, WaitsOn
from slurm_robust.localize.stacks.motion import BUSY_SHARE, Motion, compare, traffic_bytes_per_s
from slurm_robust.localize.stacks.process_tree import gil_holder, rank_place, rank_process, stopped, watched
from slurm_robust.localize.votes.progress import finished_before

TRAFFIC_BYTES_PER_S = 65_536.0
"""If a rank sends and receives more than this, it is data. Heartbeats and logs stay far below, data is far above."""
HELPER_BYTES_PER_S = 1 << 20
"""If a helper reads and writes more than this, it works: a checkpoint, a data set. Logs stay far below."""


def with_nobody_at_work(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Return the verdict as corroborated if all ranks were seen to wait and none to work for long enough.

    If a lock, a loader or work of its own holds a rank, this rank may go on, and the verdict is not changed.
    """
    sure = verdict.corroborated and verdict.grade is not Grade.WEAK
    if verdict.conclusion is Conclusion.NONE or sure:
        return verdict
    if outside := _members_outside(evidence):
        text = f"{name(outside)} are not ranks of this step, and may be at work elsewhere"
        missing = (*verdict.missing, f"what {name(outside)} do")
        return replace(verdict, detail="; ".join(filter(None, (verdict.detail, text))), missing=missing)
    if not nobody_works(evidence):
        return verdict
    return replace(verdict, corroborated=True, grade=Ground.NOBODY_WORKS.grade)


def nobody_works(evidence: Evidence) -> bool:
    """Return whether the last captures (`HELD`: three over eight seconds) all show that no rank works."""
    captures = evidence.captures
    if {e.rank for e in evidence.exits} - finished_before(evidence):
        return False
    if not captures or not captures[-1].ranks or recorder_moved(evidence.recorder_before, evidence.recorder):
        return False
    if _members_outside(evidence):
        return False
    if not _all_wait(captures[-1], evidence):
        return False
    count, began_s = 1, captures[-1].at_s
    for before, after in reversed(tuple(pairwise(captures))):
        if not _at_rest(before, after, evidence):
            break
        count, began_s = count + 1, before.at_s
    return count >= HELD.captures and captures[-1].at_s - began_s >= HELD.span_s


def _members_outside(evidence: Evidence) -> list[int]:
    """Return members of the recorded groups that this step does not have: they run in another step or job."""
    ours = {*evidence.rank_nodes, *(e.rank for e in evidence.exits)}
    groups = {group.ranks for dump in evidence.recorder.values() for group in dump.groups.values()}
    return sorted({rank for ranks in groups for rank in ranks if rank >= evidence.world_size} - ours)


def recorder_moved(before: Mapping[int, RankDump], after: Mapping[int, RankDump]) -> bool:
    """Return whether a rank enqueued or completed an operation between its two dumps."""
    return any(rank in after and _state(dump) != _state(after[rank]) for rank, dump in before.items())


def recorder_stands(evidence: Evidence) -> bool:
    """Return whether all ranks with a dump have two dumps, and nothing moved between them."""
    before, after = evidence.recorder_before, evidence.recorder
    return bool(after) and set(after) <= set(before) and not recorder_moved(before, after)


def _state(dump: RankDump) -> tuple[object, ...]:
    pending = tuple((op.group, op.seq, op.order, op.state) for op in dump.pending)
    return (*sorted(dump.counters.items()), pending)


def _all_wait(capture: Capture, evidence: Evidence) -> bool:
    finished = finished_before(evidence)
    seen = {rank.rank for rank in capture.ranks} | finished
    whole = len(seen) >= evidence.world_size and seen >= set(evidence.rank_nodes) and not capture.missing_nodes
    return whole and all(_waits(rank, evidence) for rank in capture.ranks)


def _waits(rank: RankCapture, evidence: Evidence) -> bool:
    """Return whether the rank waits in a collective or at its device; in own code only with an open operation."""
    where = rank_place(rank)
    if stopped(rank) is not None:
        return False
    if where.waits_for_peers:
        return True
    held = where.wait is WaitsOn.LOCK or where.slow_by_nature or gil_holder(rank) is not None
    return where.kind is Kind.USER and not held and _device_waits(rank, evidence)


def _device_waits(rank: RankCapture, evidence: Evidence) -> bool:
    dump = evidence.recorder.get(rank.rank)
    return dump is not None and dump.device_waits


def _at_rest(before: Capture, after: Capture, evidence: Evidence) -> bool:
    if not _all_wait(before, evidence):
        return False
    old = {rank.rank: rank for rank in before.ranks}
    elapsed_s = after.at_s - before.at_s
    return all(rank.rank in old and _rests(old[rank.rank], rank, elapsed_s, evidence) for rank in after.ranks)


def _rests(before: RankCapture, after: RankCapture, elapsed_s: float, evidence: Evidence) -> bool:
    """Return whether the rank made no progress and moved neither stack nor bytes; spinning for its device is rest.

    A host may spin in the step's own code or in the backward pass, if its recorder shows an open operation.

    The rank's own process waits for peers, not for its children, so children only count if they work hard.
    """
    moved = compare(_alone(before), _alone(after), elapsed_s)
    may_spin = rank_place(after).kind in (Kind.USER, Kind.BACKWARD)
    device = moved.busy and may_spin and _device_waits(after, evidence)
    if (moved.motion is Motion.MOVING or moved.busy) and not device:
        return False
    old = {p.pid: p for p in before.processes}
    if any(_works_hard(old.get(p.pid), p, elapsed_s) for p in watched(after)[1:]):
        return False
    traffic = traffic_bytes_per_s(before, after, elapsed_s)
    return traffic is None or traffic < TRAFFIC_BYTES_PER_S


def _alone(rank: RankCapture) -> RankCapture:
    """Return the rank without its helpers."""
    own = rank_process(rank)
    return rank if own is None or len(rank.processes) == 1 else replace(rank, processes=(own,))


def _works_hard(before: CapturedProcess | None, helper: CapturedProcess, elapsed_s: float) -> bool:
    """Return whether a helper uses a processor or moves bytes as one does that computes, saves or loads.

    Loggers and watchers of GPUs use a few percent for ever. `before` is None for a helper that has just come.
    """
    cpu_s = helper.cpu_s - max(before.cpu_s if before is not None else 0.0, 0.0)
    io_bytes = helper.io_bytes - max(before.io_bytes if before is not None else 0, 0)
    return cpu_s > BUSY_SHARE * elapsed_s or io_bytes > HELPER_BYTES_PER_S * elapsed_s
