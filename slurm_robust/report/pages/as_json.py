"""Writes a report for tools: the raw values of everything that the page shows."""

from __future__ import annotations

import math
from typing import Any

from slurm_robust.report.pages.view import Cell, ReportSection, ReportView


def to_json(view: ReportView) -> dict[str, Any]:
    """Return the object that `srobust report --json` prints; keys are extended, never changed."""
    return {
        "cluster": view.cluster,
        "scope": view.scope,
        "from_s": view.from_s,
        "to_s": view.to_s,
        "made_at_s": view.made_at_s,
        "numbers": {one.key: _value(one.value) for one in view.numbers},
        "sections": {one.key: _section(one) for one in view.sections},
        "doubts": list(view.doubts),
    }


def _section(section: ReportSection) -> dict[str, Any]:
    table = section.table
    columns = () if table is None else table.columns
    rows = () if table is None else table.rows
    return {
        "question": section.question,
        "answer": section.answer,
        "units": {column.key: column.unit.value for column in columns},
        "rows": [{c.key: _value(v) for c, v in zip(columns, row, strict=True)} for row in rows],
        "left_out": "" if table is None else table.left_out,
        "notes": list(section.notes),
    }


def _value(value: Cell) -> Cell:
    """JSON has no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
