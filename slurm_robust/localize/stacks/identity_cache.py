"""Answers kept by the identity of what was asked about: equal stacks of thousands of ranks are one object.

Comparing or hashing thirty frames costs more than most questions about them; asking whether it is the same object costs
nothing. What an answer was given for is kept with it, so that its identity is not used again meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from slurm_robust.localize.evidence import StackFrame

MAX_KEPT = 16384
"""Answers kept of each question; then all are forgotten at once. A big job has some thousand different stacks."""

Answer = TypeVar("Answer")
_Stack = tuple[StackFrame, ...]


def by_identity(question: Callable[[_Stack, str], Answer]) -> Callable[[_Stack, str], Answer]:
    """Keep the answers to a pure question about frames and one word."""
    kept: dict[tuple[int, str], tuple[_Stack, Answer]] = {}

    def ask(frames: _Stack, word: str = "") -> Answer:
        key = (id(frames), word)
        known = kept.get(key)
        if known is not None and known[0] is frames:
            return known[1]
        answer = question(frames, word)
        if len(kept) >= MAX_KEPT:
            kept.clear()
        kept[key] = (frames, answer)
        return answer

    return ask
