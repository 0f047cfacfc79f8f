"""How long each part may take."""

from __future__ import annotations

from collections.abc import Sequence

PARTS = {"checks": 2.0, "hang": 3.0, "checkpoint": 2.5, "stacks": 1.0, "torch": 1.5}
"""The least proven first; a part's share of the time, in relation to the others'."""


def limit_s(left_s: float, part: str, after: Sequence[str]) -> float:
    """A part's limit: its share of what is left. What a part does not use, the later ones get.

    Args:
        left_s: Time that is left for it and the later ones, seconds.
        part: One of `PARTS`.
        after: The parts that come after it.
    """
    whole = PARTS[part] + sum(PARTS[other] for other in after)
    left_s = max(0.0, left_s)
    return min(left_s, left_s * PARTS[part] / whole)
