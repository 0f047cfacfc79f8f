"""Prints CSV, so that a spreadsheet takes no cell for a formula."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence

from slurm_robust.cli.table import plain

_FORMULA = ("=", "+", "-", "@", "|", "%", "＝", "＋", "－", "＠")
"""The characters that a text must not begin with: a spreadsheet may run it. The last four are full-width forms."""


def cell(value: object) -> object:
    """Return a value for a file: numbers unchanged, texts without control characters and not as formulas."""
    if value is None or isinstance(value, (int, float)):
        return value
    text = plain(value.hex() if isinstance(value, bytes) else value)
    return f"'{text}" if text.lstrip(" '\"?").startswith(_FORMULA) else text


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print the rows on stdout, below their heading."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([cell(name) for name in columns])
    writer.writerows([cell(value) for value in row] for row in rows)
