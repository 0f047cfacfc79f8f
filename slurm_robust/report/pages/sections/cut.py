"""Cuts what a page shows of a long list, and of a long time."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_robust.core.text import shortened
from slurm_robust.report.facts import Facts
from slurm_robust.report.pages.view import Cell, FigureTable, TableColumn

MAX_TABLE_ROWS = 200
"""The most rows of a table; --json and `srobust report sql` have all rows."""
MAX_PLOT_ROWS = 20
_WORDS_CHARS = 60
_LITTLE, _MARGIN = 0.25, 0.05
"""The part of a window below which content gets an axis of its own, and the margin before that axis."""


def cut_table(
    caption: str, columns: tuple[TableColumn, ...], rows: list[tuple[Cell, ...]], what: str = "rows"
) -> FigureTable:
    """Return the table with its first rows, and a sentence about the other rows."""
    more = len(rows) - MAX_TABLE_ROWS
    left_out = f"{more:,} more {what} are left out here; srobust report sql has all." if more > 0 else ""
    return FigureTable(caption, columns, tuple(rows[:MAX_TABLE_ROWS]), left_out)


def axis_from_s(facts: Facts, begins: Iterable[float]) -> float:
    """Return where a time axis begins: with the window, or a little before the content if that fills little of it."""
    to_s = min(facts.to_s, facts.read_at_s)
    has_s = to_s - max(facts.from_s, min(begins, default=facts.from_s))
    return to_s - has_s * (1 + _MARGIN) if 0 < has_s < _LITTLE * (to_s - facts.from_s) else facts.from_s


def in_words(name: str) -> str:
    """Return a category, road or node for a sentence: `gpu_lost` as `gpu lost`, cut to what a sentence bears."""
    return shortened(name.replace("_", " "), _WORDS_CHARS)
