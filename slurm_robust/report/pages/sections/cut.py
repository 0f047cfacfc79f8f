"""How much of a long list a page shows."""

from __future__ import annotations

from slurm_robust.report.pages.view import Cell, FigureTable, TableColumn
from slurm_robust.text import shortened

MAX_TABLE_ROWS = 200
"""More is for tools: --json and `srobust report sql` have all."""
MAX_PLOT_ROWS = 20
_WORDS_CHARS = 60


def cut_table(
    caption: str, columns: tuple[TableColumn, ...], rows: list[tuple[Cell, ...]], what: str = "rows"
) -> FigureTable:
    """The table with its first rows, and a sentence about the others."""
    more = len(rows) - MAX_TABLE_ROWS
    left_out = f"{more:,} more {what} are left out here; srobust report sql has all." if more > 0 else ""
    return FigureTable(caption, columns, tuple(rows[:MAX_TABLE_ROWS]), left_out)


def in_words(name: str) -> str:
    """A category, road or node in a sentence: `gpu_lost` as `gpu lost`, and no longer than a sentence bears."""
    return shortened(name.replace("_", " "), _WORDS_CHARS)
