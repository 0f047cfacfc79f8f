"""The results as a table for people, and into a document between two marks. Pure, but for the two files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trial_cells import FAULTS, PROGRAMS, WAYS, all_cells

BEGIN, END = "<!-- trials: begin -->", "<!-- trials: end -->"

_HEAD = (
    "program", "noticed after", "decided after", "new step after", "begun at", "named", "road", "nodes afterwards",
    "end", "judgement",
)  # fmt: skip


def newest(lines: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The last result of each cell; a cell that was done again counts as it came out the last time."""
    return {result["cell"]: result for line in lines if line.strip() for result in [json.loads(line)]}


def drawn(results: Mapping[str, Mapping[str, Any]]) -> str:
    """One table for each fault and way, and how many were right."""
    words = Counter(result["judgement"] for result in results.values())
    missing = len(all_cells()) - len(results)
    counted = ", ".join(f"{words[word]} {word}" for word in ("right", "acceptable", "wrong"))
    out = [f"{len(results)} trials: {counted}" + (f"; {missing} not done" if missing else "") + ".", ""]
    for fault, of_fault in FAULTS.items():
        for way, of_way in WAYS.items():
            rows = [results[f"{p}/{fault}/{way}"] for p in PROGRAMS if f"{p}/{fault}/{way}" in results]
            if rows:
                out += [f"### Fault: {of_fault.what}, {of_way}", "", *_table([_row(row) for row in rows]), ""]
    return "\n".join(out)


def fill(document: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """The document with the table between its marks.

    Raises:
        ValueError: the marks are not there, once each.
    """
    if document.count(begin) != 1 or document.count(end) != 1:
        raise ValueError(f"the document needs one line {begin} and one line {end}")
    head, rest = document.split(begin)
    return f"{head}{begin}\n\n{table.strip()}\n\n{end}{rest.split(end)[1]}"


def fill_file(path: Path, results: Path) -> None:
    """The same for files."""
    path.write_text(fill(path.read_text(), drawn(newest(results.read_text().splitlines()))))


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    named = sorted({*result["blamed"], *result["evicted"]})
    out = result["taken_out"]
    why = f": {result['why']}" if result["why"] else ""
    return (
        PROGRAMS[result["program"]].what,
        _seconds(result["suspected_s"]),
        _seconds(result["decided_s"]),
        _seconds(result["first_new_step_s"]),
        ", ".join(f"step {step}" if step else "no step" for step in result["begun_at"]) or "–",
        f"{', '.join(named) or 'nobody'}" + (f" (fault on {result['fault_node']})" if result["fault_node"] else ""),
        result["road"] or "–",
        (f"{', '.join(out)} out" if out else "all in service")
        + (", resumed by hand" if result["resumed_by_hand"] else ""),
        f"{result['state'].lower()} {result['exit_code']}",
        f"{result['judgement']}{why}",
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [_HEAD, tuple("---" for _ in _HEAD), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
