"""Writes a report as Markdown, for a ticket or a chat: numbers, answers and tables; the HTML page has the plots."""

from __future__ import annotations

import re

from slurm_robust.report.pages.document import MAX_DOUBTS, about_times
from slurm_robust.report.pages.formats import in_cell, shown
from slurm_robust.report.pages.markup import visible
from slurm_robust.report.pages.page import period
from slurm_robust.report.pages.view import FigureTable, ReportSection, ReportView, Unit

MAX_ROWS = 30
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~!&$@])")


def markdown(view: ReportView) -> str:
    """Return the whole report."""
    about = [f"Cluster {view.cluster}" if view.cluster else "", period(view)]
    lines = [f"# {plain(view.title)}", "", plain(" · ".join(part for part in about if part)), ""]
    lines += [about_times(view.made_at_s, view.offset_s), ""]
    for one in view.numbers:
        note = f" ({plain(one.note)})" if one.note else ""
        lines.append(f"* {plain(one.label)}: **{plain(shown(one.value, one.unit))}**{note}")
    lines.append("")
    if view.doubts:
        lines += [
            "## What this page cannot say, or not for sure",
            "",
            *(f"* {plain(one)}" for one in view.doubts[:MAX_DOUBTS]),
        ]
        more = len(view.doubts) - MAX_DOUBTS
        lines += [f"* And {more:,} more of these." if more > 0 else "", ""]
    for section in view.sections:
        lines += _section(section)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def plain(raw: str) -> str:
    """Return text that Markdown renderers show unchanged: no link, no HTML, no mention, no table's bar."""
    return _SPECIAL.sub(r"\\\1", visible(raw).replace("://", "⁚//"))


def _section(section: ReportSection) -> list[str]:
    lines = [f"## {plain(section.question)}", "", plain(section.answer), ""]
    if section.table is not None and section.table.rows:
        lines += [*_table(section.table), ""]
    return [*lines, *(f"* {plain(note)}" for note in section.notes), ""]


def _table(table: FigureTable) -> list[str]:
    def row(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    lines = [row([plain(c.title) for c in table.columns])]
    lines.append(row(["---" if c.unit is Unit.TEXT else "---:" for c in table.columns]))
    lines += [
        row([plain(in_cell(v, c.unit)) for v, c in zip(values, table.columns, strict=True)])
        for values in table.rows[:MAX_ROWS]
    ]
    more = len(table.rows) - MAX_ROWS
    said = [table.left_out] if table.left_out else []
    said += [f"{more:,} more rows are in the HTML page and in --json."] if more > 0 else []
    return [*lines, *(f"\n{plain(one)}" for one in said)]
