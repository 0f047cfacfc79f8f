"""Tells whether a rank moves, from two captures: progress, stacks, CPU time, bytes.

There are three answers, since mistakes have different costs. *Still* may lead to an action, so everything must have
been seen, and nothing may have moved. *Moving* ends a suspicion. *Unsure* does neither.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slurm_robust.localize.evidence import Capture, CapturedProcess, CapturedThread, RankCapture
from slurm_robust.localize.stacks.frames import labels, main_thread, own_frames, short_function
from slurm_robust.localize.stacks.known_names import Kind, WaitsOn
from slurm_robust.localize.stacks.process_tree import (
    ProcessRole,
    is_bystander_thread,
    place,
    rank_place,
    rank_process,
    role_of,
    watched,
)

BUSY_SHARE = 0.2
"""More CPU time than this share of the elapsed time: at work, if only in native code."""
QUIET_SHARE = 0.02
"""The threads of a waiting training process use up to this share of a CPU (NCCL's watchdog, metrics)."""
QUIET_FLOOR_S = 0.03
"""Three ticks of the kernel's clock (100 a second): less CPU time cannot be measured."""
_ASLEEP = ("SS", "SD", "DS", "DD")
IO_BYTES = 16384
"""Fewer bytes than this are a log line or a heartbeat."""
STORE_BYTES_PER_S = 1 << 20
"""Fewer than this, in a rendezvous, are the polling of a store. A host moves 4.5 kB/s by itself, a lone torchrun 0.9;
that of many torchruns answers all of them, which was not measured.
"""


class Motion(str, enum.Enum):
    """The motion that two captures of one rank or process show."""

    STILL = "still"
    UNSURE = "unsure"
    MOVING = "moving"


@dataclass(frozen=True)
class RankMotion:
    """The motion of a rank between two captures, and the observation that showed it.

    Attributes:
        busy: The rank used CPU time although its stack stood still: native work, or an endless loop. With more than
            `BUSY_SHARE` of a CPU the rank counts as moving; with less, as on a crowded machine, the answer is unsure.
    """

    rank: int
    motion: Motion
    why: str
    busy: bool = False


def compare(before: RankCapture, after: RankCapture, elapsed_s: float) -> RankMotion:
    """Return how a rank moved from one capture to the next, `elapsed_s` later."""
    rank = after.rank
    old, new = before.progress, after.progress
    if old is not None and new is not None and (old.step, old.phase) != (new.step, new.phase):
        return RankMotion(rank, Motion.MOVING, f"step {old.step} ({old.phase}) to {new.step} ({new.phase})")
    if not before.processes and not after.processes:
        return RankMotion(rank, Motion.STILL, f"gone for {elapsed_s:.1f} s")
    if rank_process(before) is None or rank_process(after) is None:
        return RankMotion(rank, Motion.UNSURE, "no process of it was seen")
    findings = [_tree(before, after), *_processes(before, after, elapsed_s)]
    for motion in (Motion.MOVING, Motion.UNSURE):
        for found, why, busy in findings:
            if found is motion:
                return RankMotion(rank, motion, why, busy)
    return RankMotion(rank, Motion.STILL, f"same stacks, no CPU time and no bytes in {elapsed_s:.1f} s")


_Change = tuple[Motion, str, bool]


def motions(captures: Sequence[Capture]) -> list[RankMotion]:
    """Return how each rank moved between the last two captures; empty unless both show the same ranks on all nodes."""
    if len(captures) < 2 or captures[-1].missing_nodes:
        return []
    before, after = captures[-2:]
    old = {rank.rank: rank for rank in before.ranks}
    if {rank.rank for rank in after.ranks} != set(old):
        return []
    return [compare(old[rank.rank], rank, after.at_s - before.at_s) for rank in after.ranks]


def _tree(before: RankCapture, after: RankCapture) -> _Change:
    ours, theirs = rank_process(before), rank_process(after)
    assert ours is not None
    assert theirs is not None
    if ours.pid != theirs.pid:
        return Motion.MOVING, f"its process is another one ({ours.pid}, now {theirs.pid})", False
    old = {p.pid: p for p in watched(before)}
    new = {p.pid: p for p in watched(after)}
    for pid in sorted(old.keys() ^ new.keys()):
        process = new.get(pid) or old[pid]
        what = "came" if pid in new else "went"
        loader = role_of(process, theirs) is ProcessRole.LOADER
        return (Motion.MOVING if loader else Motion.UNSURE), f"process {pid} ({process.command[:40]}) {what}", False
    return Motion.STILL, "", False


def _processes(before: RankCapture, after: RankCapture, elapsed_s: float) -> list[_Change]:
    old = {p.pid: p for p in watched(before)}
    training = rank_process(after)
    findings = []
    for process in watched(after):
        if (was := old.get(process.pid)) is not None:
            findings += [_stacks(was, process), _counters(was, process, elapsed_s, is_rank=process is training)]
    return findings


def _stacks(before: CapturedProcess, after: CapturedProcess) -> _Change:
    ours, theirs = main_thread(before.threads), main_thread(after.threads)
    # Archives give equal stacks as one object, and lists compare equal objects without looking into them.
    same = before.threads is after.threads or [t.frames for t in before.threads] == [t.frames for t in after.threads]
    if (same and ours is not None) or before.state == after.state == "T":
        return Motion.STILL, "", False
    if ours is None or theirs is None:
        if before.state == after.state and after.state in ("D", "Z", "X"):
            return Motion.STILL, "", False
        why = after.error or before.error or "no stack"
        return Motion.UNSURE, f"process {after.pid} could not be read ({why[:80]})", False
    if _stack_key(before, ours) != _stack_key(after, theirs):
        return Motion.MOVING, f"its stack moved (process {after.pid}, now {place(after).label})", False
    if _others_key(before) != _others_key(after):
        return Motion.UNSURE, f"a side thread of process {after.pid} moved", False
    return Motion.STILL, "", False


def _stack_key(process: CapturedProcess, thread: CapturedThread) -> tuple[object, ...]:
    found = place(process)
    frames = own_frames(thread.frames)[: found.anchor]
    if found.kind in (Kind.COLLECTIVE, Kind.SYNC, Kind.BACKWARD):
        # Within the call that waits, the line may differ from poll to poll.
        return (*labels(frames[:-1]), short_function(frames[-1].function))
    return labels(frames)


def _others_key(process: CapturedProcess) -> Counter[tuple[str, ...]]:
    # Without their ids: an archive keeps one of several equal stacks, with the ids of whichever came first.
    main = main_thread(process.threads)
    others = (own_frames(thread.frames) for thread in process.threads if thread is not main)
    return Counter(labels(frames) for frames in others if frames and not is_bystander_thread(frames))


def _counters(before: CapturedProcess, after: CapturedProcess, elapsed_s: float, *, is_rank: bool) -> _Change:
    if before.state == after.state and after.state in ("T", "Z", "X"):
        return Motion.STILL, "", False
    if before.cpu_s < 0 or after.cpu_s < 0 or elapsed_s <= 0:
        return Motion.UNSURE, f"CPU time of process {after.pid} is not known", False
    moved = after.io_bytes - before.io_bytes if before.io_bytes >= 0 else 0
    wrote = f"process {after.pid} read or wrote {moved} bytes"
    if moved > IO_BYTES and not (moved <= STORE_BYTES_PER_S * elapsed_s and place(after).in_rendezvous):
        return Motion.MOVING, wrote, False
    if is_rank and place(after).kind in (Kind.COLLECTIVE, Kind.SYNC):
        # A wait for peers or the device may spin; that is not progress.
        return Motion.STILL, "", False
    found = _cpu(after, after.cpu_s - before.cpu_s, elapsed_s)
    side_thread_runs = any(thread.active and not thread.main for thread in after.threads)
    held = before.state == after.state == "D" or (is_rank and place(after).wait is WaitsOn.LOCK)
    if found[0] is Motion.MOVING and before.state + after.state in _ASLEEP and (side_thread_runs or held):
        # /proc shows the main thread's state: the processor is used by another one, which py-spy may not see (NCCL's).
        return Motion.UNSURE, f"a side thread of process {after.pid} uses a processor", False
    return (Motion.UNSURE, wrote, False) if found[0] is Motion.STILL and moved > IO_BYTES else found


def _cpu(process: CapturedProcess, used_s: float, elapsed_s: float) -> _Change:
    share = used_s / elapsed_s
    if share > BUSY_SHARE:
        return Motion.MOVING, f"process {process.pid} used {share:.0%} of a CPU at {place(process).label}", True
    if used_s > max(QUIET_SHARE * elapsed_s, QUIET_FLOOR_S):
        return Motion.UNSURE, f"process {process.pid} used {share:.1%} of a CPU", True
    return Motion.STILL, "", False


def rests_unread(number: int, captures: Sequence[Capture]) -> bool:
    """Return whether a rank whose stack is unknown rests between the last two captures, as far as the kernel counts.

    A child that does no more than a logger does is ignored. If the kernel's figures are unknown, the answer is False.
    """
    if len(captures) < 2:
        return False
    before, after = ({r.rank: r for r in capture.ranks}.get(number) for capture in captures[-2:])
    if before is None or after is None:
        return False
    elapsed_s, old, own = (
        captures[-1].at_s - captures[-2].at_s,
        {p.pid: p for p in before.processes},
        rank_process(after),
    )
    for process in watched(after):
        was = old.get(process.pid)
        quiet_s = max(QUIET_SHARE * elapsed_s, QUIET_FLOOR_S) if process is own else BUSY_SHARE * elapsed_s
        if was is None or min(was.cpu_s, process.cpu_s) < 0 or process.cpu_s - was.cpu_s > quiet_s:
            return False
        if process is own and process.io_bytes - was.io_bytes > IO_BYTES:
            return False
    return True


def traffic_bytes_per_s(before: RankCapture, after: RankCapture, elapsed_s: float) -> float | None:
    """Return how much a rank's processes moved over TCP from one capture to the next; None if it is not known.

    Not counted are connections that were opened and closed in between, RDMA, and network namespaces of a process's own.
    """
    old = {p.pid: p.net_bytes for p in before.processes}
    counted = [p for p in after.processes if p.state not in ("Z", "X")]
    grown = [p.net_bytes - old.get(p.pid, 0) for p in counted]
    unknown = min((p.net_bytes for p in counted), default=-1) < 0 or min(old.get(p.pid, 0) for p in counted) < 0
    # If a process's figure falls, it is another process, or its node's agent was started anew.
    return None if elapsed_s <= 0 or unknown or min(grown) < 0 else sum(grown) / elapsed_s


@dataclass(frozen=True)
class Stillness:
    """The time for which a rank has stood still, counted back from the last capture.

    Attributes:
        captures: How many captures in a row show it at the same place; 1 does not say anything about motion.
        span_s: Seconds from the first of these captures to the last.
        last: What the last two captures showed; None if there is only one capture.
    """

    captures: int
    span_s: float
    last: RankMotion | None

    @property
    def moves(self) -> bool:
        """Whether the last two captures show the rank moving."""
        return self.last is not None and self.last.motion is Motion.MOVING


def stillness(captures: Sequence[Capture], ranks: Iterable[int]) -> dict[int, Stillness]:
    """Return how long each of these ranks has stood still at the end of the captures (oldest first)."""
    return {rank: _still(moments) for rank, moments in _moments(captures, ranks).items()}


def standing(captures: Sequence[Capture], ranks: Iterable[int]) -> dict[int, Stillness]:
    """Return how long each of these ranks has used a processor in one function only; otherwise like `stillness`."""
    return {rank: _still(moments, _stands) for rank, moments in _moments(captures, ranks).items()}


def _moments(captures: Sequence[Capture], ranks: Iterable[int]) -> dict[int, list[tuple[float, RankCapture]]]:
    seen: dict[int, list[tuple[float, RankCapture]]] = {rank: [] for rank in ranks}
    for capture in captures:
        for member in capture.ranks:
            if member.rank in seen:
                seen[member.rank].append((capture.at_s, member))
    return seen


def _rests(found: RankMotion, _before: RankCapture, _after: RankCapture, _elapsed_s: float) -> bool:
    return found.motion is Motion.STILL


def _stands(found: RankMotion, before: RankCapture, after: RankCapture, elapsed_s: float) -> bool:
    """Return whether the rank rests, or only a side thread, CPU time, or the line within one function has moved."""
    if found.motion is not Motion.MOVING:
        return True
    if _polls(before, after, elapsed_s):
        return _tree(before, after)[0] is not Motion.MOVING
    if not found.busy:
        return False
    return all(motion is not Motion.MOVING or busy for motion, _, busy in _processes(before, after, elapsed_s))


def _still(
    seen: list[tuple[float, RankCapture]], lasts: Callable[[RankMotion, RankCapture, RankCapture, float], bool] = _rests
) -> Stillness:
    if len(seen) < 2:
        return Stillness(len(seen), 0.0, None)
    count, last = 1, None
    for (old_s, old), (new_s, new) in reversed(tuple(pairwise(seen))):
        found = compare(old, new, new_s - old_s)
        last = last or found
        if not lasts(found, old, new, new_s - old_s):
            break
        count += 1
    return Stillness(count, seen[-1][0] - seen[-count][0], last)


def moving(captures: Sequence[Capture], ranks: Iterable[int]) -> list[int]:
    """Return the ranks among these that moved between the last two captures."""
    still_for = stillness(captures[-2:], ranks)
    return sorted(rank for rank, still in still_for.items() if still.moves)


def spinning(captures: Sequence[Capture], ranks: Iterable[int]) -> set[int]:
    """Return the ranks among these that only used a processor at one place between the last two captures.

    A host that waits for its GPU spins at any place of the program (`.item()`, a full launch queue). A host that
    computes looks the same, and so does one whose stack cannot be read. A rank counts only in training (as far as is
    known), without a step in between, and if its place is not known to be slow by nature.
    """
    still_for = stillness(captures[-2:], ranks)
    last = {r.rank: r for r in captures[-1].ranks} if captures else {}
    return {
        rank
        for rank, still in still_for.items()
        if still.moves and still.last is not None and still.last.busy and _may_spin(last[rank])
    }


def busy_waiting(captures: Sequence[Capture], ranks: Iterable[int]) -> set[int]:
    """Return the ranks among these that spin, also if several spin in one function at another line each time.

    A busy wait that is written in Python shows another line in each capture. So does a loop that computes: a single
    such rank is taken for computing.
    """
    wanted = set(ranks)
    spin = spinning(captures, wanted)
    polls = _polling(captures, wanted - spin) if len(captures) > 1 else set()
    return spin | polls if len(polls) > 1 else spin


def _polling(captures: Sequence[Capture], wanted: set[int]) -> set[int]:
    before, last = captures[-2:]
    elapsed_s, old = last.at_s - before.at_s, {r.rank: r for r in before.ranks}
    return {
        r.rank
        for r in last.ranks
        if r.rank in wanted and r.rank in old and _may_spin(r) and _polls(old[r.rank], r, elapsed_s)
    }


def _polls(before: RankCapture, after: RankCapture, elapsed_s: float) -> bool:
    ours, theirs = rank_process(before), rank_process(after)
    old, new = before.progress, after.progress
    if ours is None or theirs is None or ours.pid != theirs.pid or elapsed_s <= 0:
        return False
    if old is not None and new is not None and (old.step, old.phase) != (new.step, new.phase):
        return False
    threads = (main_thread(ours.threads), main_thread(theirs.threads))
    loops = {_without_innermost_line(thread) for thread in threads if thread is not None and thread.frames}
    busy = min(ours.cpu_s, theirs.cpu_s) >= 0 and theirs.cpu_s - ours.cpu_s > BUSY_SHARE * elapsed_s
    return len(loops) == 1 and None not in threads and busy and theirs.io_bytes - ours.io_bytes <= IO_BYTES


def _without_innermost_line(thread: CapturedThread) -> tuple[str, ...]:
    frames = own_frames(thread.frames)
    return (*labels(frames[:-1]), *labels(frames[-1:], lines=False))


def _may_spin(rank: RankCapture) -> bool:
    where = rank_place(rank)
    in_training = rank.progress is None or rank.progress.phase == "train"
    return in_training and not where.slow_by_nature and where.kind in (Kind.USER, Kind.BACKWARD, Kind.UNKNOWN)
