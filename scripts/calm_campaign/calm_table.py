"""The results as a table, and into a document between two marks. Pure, but for the last function."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from calm_rules import HARMED, PLAIN, RUN, WAYS

BEGIN, END = "<!-- calm: begin -->", "<!-- calm: end -->"
Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Program → way → the run's line of the results."""


def by_program(lines: Iterable[Mapping[str, Any]]) -> Results:
    """Sort the lines of results; a run that was repeated counts as it came out the last time."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["program"], {})[line["way"]] = line
    return found


def drawn(programs: Iterable[Any], after: Results, before: Results) -> str:
    """Draw one row for each program that was run, and count how they came out."""
    rows, words = [], Counter[str]()
    for program in programs:
        if program.name not in after:
            continue
        now = _both(after[program.name])
        words[now.split(":")[0].split(" ")[0]] += 1
        pause = f"{program.pause_s:g} s" if program.pause_s else ""
        was = _both(before[program.name], brief=True) if program.name in before else ""
        rows.append(f"| {program.kind} | {program.name} | {_cell(program.what)} | {pause} | {was} | {now} |")
    counted = ", ".join(f"{words[word]} {word}" for word in ("untouched", "announced", "harmed"))
    head = ["| kind | program | what it does | longest pause | before | now |", "|---|---|---|---|---|---|"]
    return "\n".join([f"{len(rows)} programs: {counted}.", "", *head, *rows])


def read(path: Path | None) -> Results:
    """Read a file that `--json` has written; None gives no results."""
    return by_program(json.loads(path.read_text())["runs"]) if path else {}


def _both(ways: Mapping[str, Mapping[str, Any]], *, brief: bool = False) -> str:
    """Say how the two supervised runs came out, in one cell: the worse one, and which it was."""
    order = ("untouched", "announced", HARMED)
    runs = {way: run for way, run in ways.items() if way != PLAIN}
    if not runs:
        return ""
    worst = max((run["judgement"] for run in runs.values()), key=order.index)
    if worst != HARMED:
        return worst
    harmed = {way: run["harms"] for way, run in runs.items() if run["judgement"] == HARMED}
    where = "" if len(harmed) == len(runs) else f" under {WAYS[next(iter(harmed))]}"
    why = "; ".join(harmed.get(RUN) or next(iter(harmed.values())))
    return f"harmed{where}" if brief else f"harmed{where}: {_cell(why)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
