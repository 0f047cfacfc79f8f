"""What the last lines of the ranks that ended say, as a sentence for the incident's page. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_robust.diagnose.findings import LogFinding, findings
from slurm_robust.diagnose.root import diagnose
from slurm_robust.diagnose.taxonomy import Blame
from slurm_robust.localize.evidence import RankExit

_MOST_RANKS = 64
"""The first that ended: all others only follow, and ten thousand would take a while."""
_CHARS = 200
_WHOSE = {
    Blame.NODE: "its node's fault",
    Blame.SHARED: "the fault of something that nodes share",
    Blame.PROGRAM: "the program's fault",
    Blame.EITHER: "a node's fault or the program's: the lines do not tell",
    Blame.NOBODY: "nobody's fault",
}


def last_words_note(exits: Iterable[RankExit]) -> str:
    """The root among their errors, whose fault it is and what to do; empty where no line says anything."""
    first = sorted(exits, key=lambda end: end.at_s)[:_MOST_RANKS]
    found: list[LogFinding] = []
    number = 0
    shared = {id(end.shared_lines): end.shared_lines for end in first}
    streams = [(end.rank, end.last_lines) for end in first] + [(None, lines) for lines in shared.values()]
    for rank, lines in streams:
        found += findings(lines, rank, first=number)
        number += len(lines)
    diagnosis = diagnose(found)
    root = diagnosis.root
    if root is None:
        return ""
    who = next((f" (rank {end.rank} on {end.node or '?'})" for end in first if end.rank == root.rank), "")
    return (
        f"The log says{who}: {root.text[:_CHARS]!r}. {diagnosis.category.meaning} By these lines it is "
        f"{_WHOSE[diagnosis.blame]}. {root.rule.remedy}"
    )
