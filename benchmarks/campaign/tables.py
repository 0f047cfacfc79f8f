"""Saved figures of a campaign as the tables of `docs/benchmarks.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from campaign.cases import BLAMELESS
from campaign.score import Share

_NAMED = ("exact", "group", "wrong", "partial", "missed")
_HEADS = ("exact node", "smallest group", "wrong node", "some of them", "missed", "rightly nobody", "machines a case")


def markdown(figures: Mapping[str, Any], ours: str, ablated: Sequence[str]) -> Iterator[str]:
    """Lines: ours by class, the baselines in short, calibration, sizes, and right answers with each vote left out."""
    yield from _table(("class", "cases", *_HEADS), ([kind, *_row(kind, told)] for kind, told in figures[ours].items()))
    others = [m for m in figures if isinstance(figures[m], dict) and "single rank" in figures[m]]
    baselines = [m for m in others if m != ours and m not in ablated]
    rows = [[kind, *(f"{_right(kind, figures[m][kind])}; {_wrong(kind, figures[m][kind])}; "
                     f"{figures[m][kind]['evicted_a_case']:.1f}" for m in (ours, *baselines))]
            for kind in figures[ours]]  # fmt: skip
    yield from _table(("right; wrong or false blame; machines a case", ours, *baselines), rows)
    bins = [[f"{c['from']:.1f} to {c['to']:.1f}", c["cases"], Share(c["right"], c["cases"])]
            for c in figures["calibration"] if c["cases"]]  # fmt: skip
    yield from _table(("confidence", "verdicts that name somebody", "right"), bins)
    sizes = [[ranks, told["cases"], Share(told["right"], told["cases"])] for ranks, told in figures["by_ranks"].items()]
    yield from _table(("ranks", "cases", "right"), sizes)
    if ablated:
        kinds = list(figures[ours])
        rows = [[m, figures[m][kinds[0]]["cases"], *(_hits(k, figures[m][k]) for k in kinds)] for m in ablated]
        yield from _table(("right answers", "cases a class", *kinds), rows)


def _hits(kind: str, told: Mapping[str, Any]) -> int:
    return int(told["rightly nobody"]["hits"] if kind in BLAMELESS else told["located"])


def _right(kind: str, told: Mapping[str, Any]) -> str:
    return f"{100 * _hits(kind, told) / told['cases']:.1f} %"


def _wrong(kind: str, told: Mapping[str, Any]) -> str:
    return f"{100 * told['false blame' if kind in BLAMELESS else 'wrong']['hits'] / told['cases']:.1f} %"


def _row(kind: str, told: Mapping[str, Any]) -> list[Any]:
    """A name in a class in which nobody may be named stands with the wrong nodes."""
    asked = ("", "", "false blame", "", "", "rightly nobody") if kind in BLAMELESS else (*_NAMED, "")
    shown = [Share(told[name]["hits"], told["cases"]) if name else "" for name in asked]
    return [told["cases"], *shown, f"{told['evicted_a_case']:.2f}"]


def _table(heads: Sequence[str], rows: Iterator[list[Any]] | Sequence[list[Any]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""
