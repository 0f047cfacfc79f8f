"""How answers are counted: right, near, wrong; shares with Wilson intervals; whether confidence means something."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from campaign.cases import BLAMELESS, Case

OUTCOMES = ("exact", "group", "partial", "wrong", "missed", "rightly nobody", "false blame")
"""exact: the struck nodes and no other. group: all of them, and no node outside their smallest parallel group.
partial: some of them, and no other. wrong: a node outside that group, or inside it without all that were struck.
missed: nobody, though the evidence tells. rightly nobody, false blame: where nobody may be named."""
BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)


@dataclass(frozen=True)
class Answer:
    """What one method said of one case.

    Attributes:
        acted_on_s: From the last step to the action, with default settings; None if that was not asked.
    """

    kind: str
    what: str
    seed: int
    outcome: str
    evicted: int
    confidence: float = 0.0
    ranks: int = 0
    acted_on_s: float | None = None

    @property
    def right(self) -> bool:
        """Nothing was evicted in vain but for the smallest group."""
        return self.outcome in ("exact", "group", "rightly nobody")


def outcome(case: Case, named: frozenset[str]) -> str:
    """Which of `OUTCOMES` these nodes are."""
    truth = case.truth
    if case.kind in BLAMELESS:
        return "false blame" if named else "rightly nobody"
    if not named:
        return "missed"
    if named == truth.nodes:
        return "exact"
    if truth.nodes <= named <= truth.group_nodes:
        return "group"
    return "partial" if named < truth.nodes else "wrong"


def wilson(hits: int, cases: int) -> tuple[float, float]:
    """The interval in which a share lies, at 95 %; everything, where there are no cases."""
    if not cases:
        return 0.0, 1.0
    z = 1.96
    share = hits / cases
    middle = share + z * z / (2 * cases)
    spread = z * math.sqrt(share * (1 - share) / cases + z * z / (4 * cases * cases))
    low, high = ((middle + sign * spread) / (1 + z * z / cases) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


@dataclass(frozen=True)
class Share:
    """How many of how many."""

    hits: int
    cases: int

    def __str__(self) -> str:
        if not self.cases:
            return "–"
        low, high = wilson(self.hits, self.cases)
        return f"{100 * self.hits / self.cases:.1f} % ({100 * low:.1f}–{100 * high:.1f})"


def shares(answers: Sequence[Answer]) -> dict[str, Share]:
    """Each outcome's share."""
    counted = Counter(a.outcome for a in answers)
    return {name: Share(counted[name], len(answers)) for name in OUTCOMES}


def located(answers: Sequence[Answer]) -> Share:
    """Exact node or its smallest group."""
    return Share(sum(a.outcome in ("exact", "group") for a in answers), len(answers))


def evicted(answers: Sequence[Answer]) -> float:
    """Machines that would be evicted, a case."""
    return sum(a.evicted for a in answers) / max(1, len(answers))


def calibration(answers: Iterable[Answer]) -> list[tuple[float, float, Share]]:
    """By confidence of the verdicts that name somebody: (from, to, how many are right)."""
    naming = [a for a in answers if a.evicted]
    found = []
    for low, high in pairwise(BINS):
        here = [a for a in naming if low <= a.confidence < high]
        found.append((low, min(high, 1.0), Share(sum(a.right for a in here), len(here))))
    return found
