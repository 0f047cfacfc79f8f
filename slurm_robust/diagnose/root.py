"""Which of many errors is the one that the others follow from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurm_robust.diagnose.findings import LogFinding, each_rule_once
from slurm_robust.diagnose.rulebook import shipped
from slurm_robust.diagnose.taxonomy import Blame, Category

UNKNOWN = "unknown"
_SAYS_LITTLE = ("summary", "runtime")
"""Categories whose consequences come after all others."""


@dataclass(frozen=True)
class Diagnosis:
    """What broke.

    Attributes:
        root: The line that shows it; None where no line does.
        category: Of the root.
        blame: Whose fault it is.
        followed: What only followed from it, each rule once, in order.
        also: Other errors that may be roots of their own.
    """

    root: LogFinding | None
    category: Category
    blame: Blame
    followed: tuple[LogFinding, ...] = ()
    also: tuple[LogFinding, ...] = ()


def diagnose(found: Sequence[LogFinding]) -> Diagnosis:
    """Find the root among the findings of a job, which stand in the order of time where it is known.

    Consequences count only where nothing else is there. Of the rest, a machine's own complaint goes before a specific
    error, and that before a general one. Of equals, the first counts.
    """
    if not found:
        unknown = shipped().categories[UNKNOWN]
        return Diagnosis(None, unknown, unknown.blame)
    root = _raised(min(found, key=_rank), found)
    rest = each_rule_once(finding for finding in found if finding is not root and finding.rule is not root.rule)
    followed = tuple(f for f in rest if not f.rule.weight or f.followed)
    also = tuple(f for f in rest if f not in followed and not f.mild)
    return Diagnosis(root, root.category, root.blame, followed, also)


def _raised(root: LogFinding, found: Sequence[LogFinding]) -> LogFinding:
    """An exception instead of a mere line about the program: scripts complain of much that ends nothing."""
    if root.in_traceback or root.blame is not Blame.PROGRAM or any(f.category is root.category for f in _raises(found)):
        return root
    return min((f for f in _raises(found) if f.rule.weight >= root.rule.weight), key=_rank, default=root)


def _raises(found: Sequence[LogFinding]) -> Iterator[LogFinding]:
    return (f for f in found if f.in_traceback and not f.followed and not f.mild)


def _rank(finding: LogFinding) -> tuple[float, int]:
    weight = float(finding.rule.weight)
    if finding.followed or finding.mild:
        weight = min(weight, 0.5) if weight else -1.0
    if finding.header:
        weight -= 0.1
    if not finding.rule.weight and finding.category.name in _SAYS_LITTLE:
        weight -= 0.5
    return -weight, finding.number
