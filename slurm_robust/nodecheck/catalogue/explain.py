"""The checks explained, for `srobust check --list` and for docs/checks.md.

`python -m slurm_robust.nodecheck.catalogue.explain docs/checks.md` writes the generated half of that page anew.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.catalogue import kernel_patterns, sxids, xids
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.registry import Check

WIDTH = 100
"""Columns of what people read."""

MARK = "<!-- From here on written by `python -m slurm_robust.nodecheck.catalogue.explain docs/checks.md`. -->"


def as_json(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """One object a check, as `--list --json` prints them."""
    return [
        {
            "name": check.name,
            "question": check.question,
            "reads": check.reads,
            "cost": check.cost,
            "stages": list(check.stages),
            "options": {
                name: {"default": option.default, "meaning": option.meaning, "source": option.source}
                for name, option in check.options.items()
            },
        }
        for check in checks
    ]


def as_text(checks: Sequence[Check]) -> str:
    """For people, as `--list` prints it: by subject, no line longer than WIDTH."""
    lines: list[str] = []
    subject = ""
    for check in checks:
        if registry.GROUP_OF.get(check.name, "") != subject:
            subject = registry.GROUP_OF.get(check.name, "")
            lines += ["", f"== {subject} =="] if lines else [f"== {subject} =="]
        lines += ["", *wrapped(f"{check.name}: {check.question}", "  ")]
        rows = [("reads", check.reads), ("costs", check.cost), ("stages", ", ".join(check.stages))]
        if check.strikes > 1 and "periodic" in check.stages:
            rows.append(("counts", f"in the periodic stage after {check.strikes} looks in a row"))
        for name, option in check.options.items():
            rows.append(("option", f"{name} = {json.dumps(option.default)}: {option.meaning} [{option.source}]"))
        for head, text in rows:
            lines += wrapped(text, " " * 10, first=f"  {head:8}")
    return "\n".join(lines)


def wrapped(text: str, indent: str, first: str = "") -> list[str]:
    """The text in lines of at most WIDTH characters; later ones begin with `indent`."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def as_markdown(checks: Sequence[Check]) -> str:
    """The generated half of docs/checks.md: each check, then the kernel log's kinds, XIDs and SXIDs."""
    lines = [MARK, ""]
    for check in checks:
        lines += [f"## `{check.name}`", "", check.question, "", f"* Reads: {check.reads}", f"* Costs: {check.cost}"]
        lines += [f"* Stages: {', '.join(check.stages)}"]
        if check.strikes > 1 and "periodic" in check.stages:
            looks = f"{check.strikes} looks in a row, each within {check.window_s / 60:g} min of the one before"
            lines += [f"* Counts in the periodic stage after {looks}"]
        lines += [""]
        if check.options:
            lines += ["| option | default | meaning | where the default comes from |", "|---|---|---|---|"]
            for name, option in check.options.items():
                lines.append(f"| `{name}` | `{json.dumps(option.default)}` | {option.meaning} | {option.source} |")
            lines.append("")
    lines += ["## What the kernel log may tell", "", "| kind | from how many lines on | what to do |", "|---|---|---|"]
    lines += [
        f"| `{kind}` | {trouble.often} | {_cell(trouble.remedy)} |" for kind, trouble in kernel_patterns.KINDS.items()
    ]
    lines += ["", "## The XIDs", "", "| XID | meaning | at fault | what to do | for us |", "|---|---|---|---|---|"]
    for code, entry in sorted(xids.CATALOGUE.items()):
        lines.append(f"| {code} | {entry.name} | {entry.fault.value} | {entry.act.value} | {_grade(code)} |")
    lines += ["", "## The SXIDs (errors of NVSwitches)", ""]
    lines += ["| SXID | meaning | what to do | for us, where it says `Fatal` | `Non-fatal` |", "|---|---|---|---|---|"]
    for code, entry in sorted(sxids.CATALOGUE.items()):
        words = (_WORDS[sxids.grade(code, fatal=fatal).value] for fatal in (True, False))
        lines.append(f"| {code} | {entry.name} | {entry.act.value} | {' | '.join(words)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_WORDS = {"fail": "**unfit**", "warn": "warn", "note": "harmless"}


def _grade(code: int) -> str:
    if code == 154:
        return "**unfit** where it wants a reset or reboot; harmless where it says `None`; else warn"
    if 144 <= code <= 150:
        return "**unfit** where it says `Fatal`, else warn"
    return _WORDS[xids.grade(code, "").value]


def main(path: Path) -> None:
    """Write the generated half of this page anew."""
    written = path.read_text(encoding="utf-8").partition(MARK)[0]
    path.write_text(written + as_markdown(registry.select("full")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
