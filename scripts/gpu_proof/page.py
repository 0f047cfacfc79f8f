"""One JSON object and one Markdown page of all that was found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpu_proof.outcome import PartOutcome, Status, Step

_MARKS = {Status.HELD: "held", Status.FAILED: "**FAILED**", Status.NOT_RUN: "not run"}


def to_json(machine: Mapping[str, Any], outcomes: Sequence[PartOutcome], rehearsal: bool) -> str:
    """The whole as one object."""
    parts = [{**asdict(outcome), "failed": outcome.failed} for outcome in outcomes]
    return json.dumps({"rehearsal": rehearsal, "machine": dict(machine), "parts": parts}, indent=1, default=str) + "\n"


def to_markdown(machine: Mapping[str, Any], outcomes: Sequence[PartOutcome], rehearsal: bool) -> str:
    """The same for people: the machine, a table a part, the output of what failed."""
    lines = ["# Proof on GPUs", ""]
    if rehearsal:
        lines += ["**A rehearsal: no GPU took part.** It shows that the command works, and nothing else.", ""]
    lines += [f"* {name}: {value}" for name, value in machine.items()]
    for outcome in outcomes:
        lines += ["", f"## {outcome.part}", ""]
        if outcome.ended:
            lines += [f"**{outcome.ended}**, after {outcome.took_s:.0f} s.", ""]
        if outcome.steps:
            lines += ["| step | | what came of it | s |", "|---|---|---|---|"]
            lines += [_row(step) for step in outcome.steps]
        if outcome.failed and outcome.log_tail:
            lines += ["", "```", outcome.log_tail.replace("```", "'''"), "```"]
        figures = {step.name: step.figures for step in outcome.steps if step.figures}
        if figures:
            lines += ["", "```json", json.dumps(figures, indent=1, default=str), "```"]
    return "\n".join(lines) + "\n"


def _row(step: Step) -> str:
    said = step.sentence.replace("|", "\\|").replace("\n", " ")
    return f"| {step.name} | {_MARKS[step.status]} | {said} | {step.took_s:.1f} |"
