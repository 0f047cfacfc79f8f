"""Which step the next training has to go on from, by what the documentation promises; judges notes, touches nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kill_cases import STEPS, Case

_Steps = Mapping[int, frozenset[int]]
"""Rank → steps."""


class Left(NamedTuple):
    """What is left of a training once everybody is killed who is to be.

    Attributes:
        own: Copies in the ranks' own buffers, of those that can be reached.
        kept: Copies that other nodes keep, the same.
        parts: Files of saves that nobody has sealed.
        sealed: The newest step under a seal.
    """

    own: _Steps
    kept: _Steps
    parts: _Steps
    sealed: int


def newest(left: Left, ranks: int) -> int:
    """The newest step of which every rank's share is somewhere, 0 for none."""
    shares = [
        left.own.get(rank, frozenset()) | left.kept.get(rank, frozenset()) | left.parts.get(rank, frozenset())
        for rank in range(ranks)
    ]
    return max({left.sealed} | frozenset.intersection(*shares))


def promised(case: Case, began: int, dead_kept: int) -> int:
    """The step that must be left, at least, whoever had it: a save waits until the one before is kept elsewhere.

    Args:
        case: The round.
        began: The last step that any rank began to copy.
        dead_kept: The last step that a persister kept which ended alone, with its agent or without: who has sent it
            sends the next one to its successor, and nothing before.
    """
    if case.victim in ("rank", "node"):
        return began - 1
    if case.lost and case.nodes == 2 and dead_kept == STEPS:  # both copies are gone then, of three not all
        return 0
    return STEPS
