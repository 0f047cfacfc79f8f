"""Writes the table of urgencies into docs/nodewatch.md.

`python -m slurm_robust.nodewatch.explain docs/nodewatch.md` writes the generated half of that page anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from slurm_robust.nodecheck.catalogue import job_urgency, kernel_patterns, sxids, xids
from slurm_robust.nodecheck.catalogue.job_urgency import NOTE, UrgencyRule
from slurm_robust.nodecheck.catalogue.xids import XidGrade
from slurm_robust.nodecheck.engine.finding import Status
from slurm_robust.nodewatch import urgency

MARK = "<!-- From here on written by `python -m slurm_robust.nodewatch.explain docs/nodewatch.md`. -->"
_HEAD = ["| what | urgency | where that comes from |", "|---|---|---|"]
_ORDER = (job_urgency.NOW, job_urgency.IF_REPEATED, job_urgency.AT_NEXT_CHECKPOINT, NOTE)


def as_markdown() -> str:
    """Return the generated half of docs/nodewatch.md."""
    lines = [MARK, "", "## XIDs", "", "Each as the catalogue grades it; all that are not in this table are a note.", ""]
    graded = ((f"{code} {entry.name}", code, entry.grade) for code, entry in sorted(xids.CATALOGUE.items()))
    lines += _rows((what, urgency.of_xid(code, grade)) for what, code, grade in graded)
    said = (
        "Some lines say themselves how bad they are. Where 74 and 144 to 150 fail, they are `now`; 154 is `now` where"
    )
    lines += [
        "",
        f"{said} it wants a reset",
        "or a reboot, and `at_next_checkpoint` where it wants the GPU drained first.",
    ]
    lines += ["", "## SXIDs (errors of NVSwitches)", ""]
    failing = (entry for code, entry in sorted(sxids.CATALOGUE.items()) if entry.grade is not XidGrade.NOTE)
    by_rule: dict[UrgencyRule, list[str]] = {}
    for entry in failing:
        by_rule.setdefault(urgency.of_sxid(entry.code, entry.grade), []).append(str(entry.code))
    lines += _rows((", ".join(codes), rule) for rule, codes in by_rule.items())
    lines += ["", "A line that does not call itself fatal is a note, unless the catalogue grades it otherwise."]
    lines += ["", "## Kernel messages", "", "Kinds that are not in this table are a note.", ""]
    kinds = dict.fromkeys([*kernel_patterns.KINDS, *urgency.KERNEL])
    worst = {kind: Status.FAIL if kind in ("fs_shutdown", "remount_ro") else Status.WARN for kind in kinds}
    lines += _rows((f"`{kind}`", urgency.of_kernel(kind, worst[kind], about_gpu=True)) for kind in kinds)
    lines += [
        "",
        "`disk_lost` is so where something on that disk is mounted. It is a note where nothing is, or where the line",
    ]
    lines += ["names no disk, and `at_next_checkpoint` where an array of several disks goes on without it."]
    lines += ["", "## Checks that fail", "", "Of the checks that the service runs.", ""]
    lines += _rows((f"`{name}`", rule) for name, rule in urgency.CHECKS.items())
    lines += ["", "## Checks that warn", "", "By their reason; all that are not in this table are a note.", ""]
    lines += _rows((f"`{reason}`", rule) for reason, rule in urgency.REASONS.items())
    return "\n".join([*lines, ""])


def _rows(rules: Iterable[tuple[str, UrgencyRule]]) -> Iterator[str]:
    """Yield the table's rows, the most urgent first, without notes."""
    rows = [(_ORDER.index(rule.name), what, rule) for what, rule in rules if rule.name != NOTE]
    yield from _HEAD
    for _, what, rule in sorted(rows, key=lambda row: row[0]):
        yield f"| {what} | `{rule.name}` | {rule.source} |"


def main(path: Path) -> None:
    """Write the generated half of this page anew."""
    written = path.read_text(encoding="utf-8").partition(MARK)[0]
    path.write_text(written + as_markdown(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
