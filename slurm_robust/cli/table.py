"""Tables and paragraphs for people: within the terminal's width, or 100 columns without a terminal.

Nothing is cut. A column that is too wide wraps at words; if that is not enough, the columns named as least
important are left out. Tools use `--json`, which has everything.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

from slurm_robust.core.text import printable

WIDTH = 100
"""Columns if the output is not a terminal (a file, a pipe, a mail)."""
_GAP = "  "
_NARROWEST, _NARROWEST_LAST = 24, 36
"""The smallest width of a wrapped column; a narrower text cannot be read. The last column has the sentence."""


def width() -> int:
    """Columns that may be used."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return max(60, shutil.get_terminal_size((WIDTH, 24)).columns)
    return WIDTH


def plain(cell: object) -> str:
    """Return a cell's text; texts come from jobs, and must not contain commands for the terminal."""
    text = "" if cell is None else str(cell)
    return printable(text)


def bold(text: str) -> str:
    """Bold on a terminal that may have colours, else unchanged."""
    return click.style(text, bold=True) if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, drop: Sequence[str] = ()) -> None:
    """Print a table below its title; print only the title and `none` if there is no row.

    A column that is empty in every row is left out; columns in `drop` are left out if the width is too small, the first
    one first.
    """
    click.echo(bold(title))
    if not rows:
        click.echo("none")
        return
    for line in render(columns, rows, drop=drop, columns_wide=width()):
        click.echo(line)


def render(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, drop: Sequence[str] = (), columns_wide: int = WIDTH
) -> list[str]:
    """Return the lines of a table, its heading first; arguments as `table`."""
    cells = [[plain(cell) for cell in row] for row in rows]
    shown = [i for i in range(len(columns)) if any(row[i] for row in cells)] or [0]
    going = [columns.index(name) for name in drop if name in columns]
    while True:
        sizes = _sizes([[columns[i], *(row[i] for row in cells)] for i in shown], columns_wide)
        if sum(sizes) + len(_GAP) * (len(sizes) - 1) <= columns_wide or not going:
            break
        gone = going.pop(0)
        shown = [i for i in shown if i != gone]
    head = _GAP.join(columns[i].ljust(size) for i, size in zip(shown, sizes, strict=True)).rstrip()
    lines = [bold(head)]
    for row in cells:
        parts = [_wrapped(row[i], size) for i, size in zip(shown, sizes, strict=True)]
        for number in range(max(map(len, parts))):
            texts = (part[number] if number < len(part) else "" for part in parts)
            lines.append(_GAP.join(text.ljust(size) for text, size in zip(texts, sizes, strict=True)).rstrip())
    return lines


def _sizes(columns: list[list[str]], columns_wide: int) -> list[int]:
    """Natural widths; if they do not fit, the widest columns get narrower, each down to a readable width."""
    sizes = [max(map(len, column)) for column in columns]
    least = [min(size, max(_NARROWEST, len(column[0]))) for size, column in zip(sizes, columns, strict=True)]
    least[-1] = min(sizes[-1], max(_NARROWEST_LAST, least[-1]))
    excess = sum(sizes) + len(_GAP) * (len(sizes) - 1) - columns_wide
    while excess > 0:
        widest = max(range(len(sizes)), key=lambda i: (sizes[i] - least[i] > 0, sizes[i]), default=0)
        if not sizes or sizes[widest] <= least[widest]:
            break
        sizes[widest] -= 1
        excess -= 1
    return sizes


def _wrapped(text: str, size: int) -> list[str]:
    # Names and paths are broken only if they alone are wider than the column.
    return textwrap.wrap(text, size, break_on_hyphens=False) or [""]


def paragraph(label: str, text: str, *, indent: int = 2, label_wide: int = 11) -> None:
    """Print `label  text`, the text wrapped beside its label; nothing if it is empty."""
    for line in entry(label, text, indent=indent, label_wide=label_wide):
        click.echo(line)


def entry(label: str, value: object, *, indent: int = 2, label_wide: int = 11) -> list[str]:
    """Return the lines of `label  value`, the value wrapped beside its label; none if it is empty."""
    lead = " " * indent + plain(label).ljust(label_wide)
    rest = " " * len(lead)
    body = plain(value)
    if not body:
        return []
    wrap = textwrap.TextWrapper(
        width(), initial_indent=lead, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )
    return wrap.wrap(body)


def sentence(text: str) -> None:
    """Print a sentence, wrapped."""
    click.echo("\n".join(bold(line) for line in textwrap.wrap(plain(text), width(), break_on_hyphens=False)))
