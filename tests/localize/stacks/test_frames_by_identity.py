"""Answers kept by identity: never another stack's, and not for ever."""

from __future__ import annotations

from localize_scenes import ALL_REDUCE, frames

from slurm_robust.localize.evidence import CapturedProcess, CapturedThread, RankCapture, StackFrame
from slurm_robust.localize.stacks.archive import NodeArchive, decode, encode
from slurm_robust.localize.stacks.frames import MAX_KEPT, by_identity


def test_asked_once_for_the_same_object() -> None:
    """The same object and word: one question; an equal object or another word: another one."""
    asked: list[tuple[int, str]] = []

    @by_identity
    def question(stack: tuple[StackFrame, ...], word: str) -> int:
        asked.append((len(stack), word))
        return len(stack)

    stack, equal = frames("a b.py:1"), frames("a b.py:1")
    assert [question(stack, ""), question(stack, ""), question(stack, "x"), question(equal, "")] == [1, 1, 1, 1]
    assert asked == [(1, ""), (1, "x"), (1, "")]


def test_an_identity_that_is_used_again_gets_its_own_answer() -> None:
    """Many short-lived stacks, more than are kept: each answer is its own."""

    @by_identity
    def first_line(stack: tuple[StackFrame, ...], _: str) -> int:
        return stack[0].line

    assert all(first_line((StackFrame("f", "a.py", n),), "") == n for n in range(2 * MAX_KEPT + 5))


def test_equal_frames_of_two_nodes_are_one_object() -> None:
    """Whatever the thread's id on its node: that is what makes a hundred thousand ranks fit."""

    def node(name: str, thread_id: int) -> RankCapture:
        threads = (CapturedThread(ALL_REDUCE, "MainThread", thread_id, main=True),)
        archive = NodeArchive(name, 1.0, 1, (RankCapture(0, name, (CapturedProcess(1, 0, threads=threads),)),))
        return decode(encode(archive)).ranks[0]

    one, two = node("n1", 5), node("n2", 6)
    assert one.processes[0].threads[0].frames is two.processes[0].threads[0].frames
    assert (one.processes[0].threads[0].os_thread_id, two.processes[0].threads[0].os_thread_id) == (5, 6)
