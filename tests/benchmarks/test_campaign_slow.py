"""The simulator of slow jobs: what it says struck is what its numbers show."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from campaign.slow import BLAMELESS, CLASSES, make_case  # type: ignore[import-not-found]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_case_is_what_its_class_says(kind: str) -> None:
    """Slow nodes where there is a slow machine and none elsewhere; whole tables; the same again for the same seed."""
    case = make_case(kind, 7, 64)
    assert bool(case.slow) is (kind not in BLAMELESS)
    assert case.slow <= set(case.nodes)
    assert case.world == math.prod(case.layout.values()) <= 64
    assert all(len(row) == case.world for row in (*case.compute, *case.total))
    assert repr(make_case(kind, 7, 64)) == repr(case)
    assert case.told is ("no layout" not in kind)


def test_the_struck_rank_is_the_slow_one() -> None:
    """Thirty per cent stand out of its own jitter by the plainest measure."""
    case = make_case("slow GPU 30 %", 3, 64)
    means = [
        sum(filter(math.isfinite, column)) / max(1, sum(map(math.isfinite, column)))
        for column in zip(*case.compute, strict=True)
    ]
    (node,) = case.slow
    here = max(mean for mean, home in zip(means, case.nodes, strict=True) if home == node)
    assert here > 1.1 * sorted(means)[len(means) // 2]


def test_totals_are_in_lockstep() -> None:
    """All ranks end a step together, whoever was slow in it."""
    case = make_case("totals only", 5, 64)
    for row in case.total:
        known = list(filter(math.isfinite, row))
        assert max(known) < 1.01 * min(known)
