"""Writes the explanation of the checks, for `srobust check --list` and for docs/checks.md.

`python -m slurm_robust.nodecheck.catalogue.explain docs/checks.md` writes the generated half of that page anew.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.catalogue import kernel_patterns, remedies, sxids, xids
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.registry import Check

WIDTH = 100
"""Columns of what people read."""

MARK = "<!-- From here on written by `python -m slurm_robust.nodecheck.catalogue.explain docs/checks.md`. -->"


def as_json(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Return one object for each check, as `--list --json` prints it."""
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
    """Return the checks for people, as `--list` prints them: by subject, no line longer than WIDTH."""
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
    """Return the text in lines of at most WIDTH characters; later ones begin with `indent`."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def as_markdown(checks: Sequence[Check]) -> str:
    """Return the generated half of docs/checks.md: each check, then the kernel log's kinds, XIDs and SXIDs."""
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
    lines += [
        "",
        "## The XIDs",
        "",
        _XID_SOURCE,
        "",
        "| XID | meaning | at fault | what to do | for us |",
        "|---|---|---|---|---|",
    ]
    for code, entry in sorted(xids.CATALOGUE.items()):
        lines.append(f"| {code} | {entry.name} | {entry.fault.value} | {entry.act.value} | {_grade(code)} |")
    lines += ["", "## The SXIDs (errors of NVSwitches)", "", _SXID_SOURCE, ""]
    lines += ["| SXID | meaning | what to do | for us, where it says `Fatal` | `Non-fatal` | neither |"]
    lines += ["|---|---|---|---|---|---|"]
    for code, entry in sorted(sxids.CATALOGUE.items()):
        words = (_WORDS[sxids.grade(code, fatal=fatal).value] for fatal in (True, False, None))
        lines.append(f"| {code} | {entry.name} | {entry.act.value} | {' | '.join(words)} |")
    lines += ["", "## What can be repaired without a person", "", *_REPAIRS, ""]
    lines += ["| what was found | remedy | source |", "|---|---|---|"]
    for act, remedy in remedies.BY_ACT.items():
        lines.append(f"| an XID or SXID for which the tables above say: {act.value} | `{remedy.value}` | as there |")
    lines.append("| XID 154 | the action that it names: `gpu_reset` or `reboot` | the driver's own line |")
    for (name, reason), row in remedies.BY_FINDING.items():
        lines.append(f"| `{name}`: {reason} | `{row.remedy.value}` | {_cell(row.source)} |")
    return "\n".join([*lines, ""])


_REPAIRS = (
    "Where the site has switched [repairs](operations.md#repair) on. The remedy stands at the end of the drain's",
    "reason. Of several faults the strongest remedy is taken (a reboot resets the GPUs, too); one fault without a",
    "remedy leaves the node to a person. All other findings have none.",
)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_XID_SOURCE = (
    "Codes, meanings and actions: NVIDIA's [catalogue](https://docs.nvidia.com/deploy/xid-errors/"
    "analyzing-xid-catalog.html) as of driver 580, with its NVLink 5 table; older codes: its listing as of r535."
)
_SXID_SOURCE = (
    "Classes, effects and recovery: NVIDIA's Fabric Manager guide (DU-09883-001, appendix D.4 to D.7). Other codes, "
    "and lines without `Fatal` or `Non-fatal`: NVIDIA's open driver 595 (`src/common/nvswitch`)."
)
_WORDS = {"fail": "**unfit**", "warn": "warn", "note": "harmless"}


def _grade(code: int) -> str:
    if code == 109:
        return "warn; **unfit** on drivers before R550, which have no 154"
    if code == 145:
        return "**unfit** where it says `Fatal` or its error status does; harmless where all was corrected; else warn"
    if code == 154:
        return (
            "**unfit** where it wants a reset or reboot, before a job also where it wants `Drain P2P`; "
            "harmless where it says `None`; else warn"
        )
    if 144 <= code <= 150:
        return "**unfit** where it says `Fatal`, else warn"
    return _WORDS[xids.grade(code, "").value]


def main(path: Path) -> None:
    """Write the generated half of this page anew."""
    written = path.read_text(encoding="utf-8").partition(MARK)[0]
    path.write_text(written + as_markdown(registry.select("full")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
