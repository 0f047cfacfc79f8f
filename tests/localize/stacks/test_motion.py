from dataclasses import replace

import pytest
from localize_scenes import (
    ALL_REDUCE,
    LOADER_WAIT,
    MAIN,
    USER,
    WORKER_IDLE,
    WORKER_LOCK,
    capture,
    frames,
    in_loader,
    process,
    rank,
    waiting,
)

from slurm_robust.localize.evidence import CapturedProcess, CapturedThread, RankCapture, StackFrame
from slurm_robust.localize.stacks.motion import Motion, compare, stillness

STILL = process(USER)


def moved(before: CapturedProcess, after: CapturedProcess, elapsed_s: float = 5.0) -> Motion:
    """Motion of a rank that is this one process."""
    return compare(rank(0, before), rank(0, after), elapsed_s).motion


@pytest.mark.parametrize(
    ("after", "motion"),
    [
        (STILL, Motion.STILL),
        (replace(STILL, cpu_s=5.02), Motion.STILL),
        (replace(STILL, cpu_s=5.3), Motion.UNSURE),
        (replace(STILL, cpu_s=7.0), Motion.MOVING),
        (replace(STILL, cpu_s=-1.0), Motion.UNSURE),
        (replace(STILL, io_bytes=1500), Motion.STILL),
        (replace(STILL, io_bytes=10_000_000), Motion.MOVING),
        (process(frames(*MAIN, "augment /home/u/train.py:32")), Motion.MOVING),
        (process(None), Motion.UNSURE),
        (replace(STILL, pid=7), Motion.MOVING),
    ],
)
def test_one_process(after: CapturedProcess, motion: Motion) -> None:
    """Stack, CPU time and bytes: each alone makes a process move; what is not known makes it unsure."""
    assert moved(STILL, after) is motion


def test_spinning_in_a_collective_is_no_progress() -> None:
    """NCCL's waiting uses a whole CPU."""
    before = process(ALL_REDUCE)
    assert moved(before, replace(before, cpu_s=10.0)) is Motion.STILL


def test_line_within_the_collective_does_not_count() -> None:
    """A poll inside `all_reduce` goes round; its caller's line does not change."""
    inside = (*ALL_REDUCE[:-1], replace(ALL_REDUCE[-1], line=3260))
    assert moved(process(ALL_REDUCE), process(inside)) is Motion.STILL
    elsewhere = (ALL_REDUCE[0], replace(ALL_REDUCE[1], line=99), *ALL_REDUCE[2:])
    assert moved(process(ALL_REDUCE), process(elsewhere)) is Motion.MOVING


def test_frames_below_a_queue_do_not_count() -> None:
    """A queue's `get` is caught at one or another frame of its polling."""
    assert moved(process(LOADER_WAIT), process(LOADER_WAIT[:-1])) is Motion.STILL


def test_step_beats_everything() -> None:
    """A step completed is motion, however alike the stacks are."""
    found = compare(rank(0, STILL, step=3), rank(0, STILL, step=4), 5.0)
    assert found.motion is Motion.MOVING
    assert "step 3" in found.why


def test_a_loader_at_work_moves_its_rank() -> None:
    """The whole tree counts: the rank stands at its queue while its worker decodes."""
    before = in_loader(0, process(WORKER_LOCK))
    after = in_loader(0, process(WORKER_LOCK, cpu_s=9.0))
    found = compare(before, after, 5.0)
    assert (found.motion, found.busy) == (Motion.MOVING, True)


def test_a_new_loader_is_motion() -> None:
    """Workers come with an epoch."""
    before = rank(0, process(LOADER_WAIT))
    assert compare(before, in_loader(0, process(WORKER_IDLE)), 5.0).motion is Motion.MOVING


def test_bystanders_do_not_count() -> None:
    """A metrics writer that hums along says nothing about training."""
    quiet = process(USER, 200, command="wandb-core --port 1")
    before, after = rank(0, STILL, quiet), rank(0, STILL, replace(quiet, cpu_s=9.0, io_bytes=10**9))
    assert compare(before, after, 5.0).motion is Motion.STILL


def test_a_side_thread_that_moves_is_unsure() -> None:
    """A main thread in a lock may wait for a thread at work."""

    def side(line: int) -> CapturedThread:
        return CapturedThread((StackFrame("pump", "/home/u/io.py", line),), "pump", 7)

    assert moved(process(USER, side=[side(1)]), process(USER, side=[side(2)])) is Motion.UNSURE
    bar = [
        CapturedThread((StackFrame("run", "/x/lib/python3.11/site-packages/tqdm/_monitor.py", n),), "tqdm", 8)
        for n in (1, 2)
    ]
    assert moved(process(USER, side=[bar[0]]), process(USER, side=[bar[1]])) is Motion.STILL


def test_thread_ids_are_not_compared() -> None:
    """An archive stores one of several equal stacks, with the thread ids of whichever process came first."""
    sides = [CapturedThread((StackFrame("pump", "/home/u/io.py", 1),), "pump", tid) for tid in (7, 8)]
    assert moved(process(USER, side=[sides[0]]), process(USER, side=[sides[1]])) is Motion.STILL


def test_stopped_is_still_without_a_stack() -> None:
    """A stopped process needs no stack to be known to stand."""
    stopped = process(None, state="T")
    assert moved(stopped, stopped) is Motion.STILL


def test_stillness_counts_back_from_the_end() -> None:
    """Three captures, the first with another stack: two of them in a row, over the time between those two."""
    other = rank(1, process(ALL_REDUCE))
    told = stillness((capture(0.0, other), capture(5.0, rank(1, STILL)), capture(12.0, rank(1, STILL))), [1])[1]
    assert (told.captures, told.span_s) == (2, 7.0)


def test_stillness_of_one_capture_says_nothing() -> None:
    """Motion needs two looks."""
    told = stillness((capture(0.0, waiting(1)),), [1])[1]
    assert (told.captures, told.last) == (1, None)


def test_no_time_between_captures_is_unsure() -> None:
    """Captures without their times (raw dumps) do not make anything still."""
    assert compare(rank(0, STILL), rank(0, STILL), 0.0).motion is Motion.UNSURE


def test_gone_is_gone() -> None:
    """A rank without a process is still; one that goes between two captures is not known to be."""
    gone: RankCapture = rank(0)
    assert compare(gone, gone, 5.0).motion is Motion.STILL
    assert compare(rank(0, STILL), gone, 5.0).motion is Motion.UNSURE
