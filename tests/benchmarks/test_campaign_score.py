"""How the campaign counts."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from campaign import score  # type: ignore[import-not-found]
from campaign.cases import make_case  # type: ignore[import-not-found]

CAMPAIGN = Path(score.__file__).parent


@pytest.mark.parametrize(
    ("hits", "cases", "low", "high"), [(0, 600, 0.0, 0.0064), (600, 600, 0.9936, 1.0), (5, 10, 0.2366, 0.7634)]
)
def test_wilson(hits: int, cases: int, low: float, high: float) -> None:
    """The intervals of the textbook, and within 0 and 1."""
    assert score.wilson(hits, cases) == pytest.approx((low, high), abs=2e-4)


def test_outcomes() -> None:
    """Exact, group, partial, wrong and missed, from the nodes alone."""
    case = make_case("single rank", 1, 32)
    truth = replace(case.truth, nodes=frozenset({"a", "b"}), group_nodes=frozenset({"a", "b", "c"}))
    case = replace(case, truth=truth)
    told = {"ab": "exact", "abc": "group", "a": "partial", "ac": "wrong", "d": "wrong", "": "missed"}
    assert {named: score.outcome(case, frozenset(named)) for named in told} == told


@pytest.mark.parametrize("kind", ["code", "code like a group", "no fault", "unidentifiable"])
def test_nobody_may_be_named(kind: str) -> None:
    """Naming anybody is false blame, the struck node too where nothing tells it."""
    case = make_case(kind, 1, 32)
    assert score.outcome(case, frozenset()) == "rightly nobody"
    assert score.outcome(case, case.truth.nodes or frozenset({"n0000"})) == "false blame"


def test_only_the_adapter_knows_what_is_measured() -> None:
    """The simulator shares no code with the localiser."""
    knowing = set()
    for path in sorted(CAMPAIGN.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.startswith("slurm_robust") for name in names):
                knowing.add(path.name)
    assert knowing == {"adapter.py"}
