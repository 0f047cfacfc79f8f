"""Computes a failure's signature, by which it is compared with earlier failures on this or another node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from slurm_robust.core.model import Conclusion, Failure, FailureCause, SignalKind, Verdict
from slurm_robust.diagnose.findings import Matcher
from slurm_robust.diagnose.reported_gpu_faults import blames_node
from slurm_robust.diagnose.signature import signature
from slurm_robust.localize.evidence import Evidence, RankExit
from slurm_robust.localize.exit_causes import (
    Cause,
    ExitCause,
    exit_causes,
    in_words,
    known_ends,
    path_of,
    root_of_all,
    unseen_ends,
)
from slurm_robust.localize.stacks.process_tree import rank_place
from slurm_robust.localize.votes.exits import ROOTS

DISK_FULL = "died: disk full"
_LINE_CHARS = 400
_BY_CAUSE = {
    Cause.LAUNCH: FailureCause.SLURM,
    Cause.HARDWARE: FailureCause.NODE,
    Cause.SHARED: FailureCause.SHARED,
    Cause.SIGNAL: FailureCause.EITHER,
    Cause.VANISHED: FailureCause.EITHER,
    Cause.OOM: FailureCause.EITHER,
}


def failure_of(evidence: Evidence, verdict: Verdict) -> Failure | None:
    """Return what to compare with the lineage's earlier failures; None if nothing failed."""
    if verdict.conclusion is Conclusion.NONE:
        return None
    nodes = tuple(sorted({suspect.node for suspect in verdict.suspects}))
    of_node = _node_signature(evidence, nodes)
    if of_node:
        return Failure(of_node, nodes, FailureCause.NODE)
    roots = _roots(evidence)
    if (root := _root(roots, verdict)) is not None:
        finding = root[1]
        # Without a suspect it showed on every node that has it: one of them, by chance, would differ at the next time.
        # A message about a peer may be printed on any node but the broken one.
        same = (e.node for e, f in roots if f.signature == finding.signature and e.node and not f.of_peer)
        where = nodes or tuple(sorted(set(same)))
        telling = where if _telling(finding) and not _unsure_where(evidence, finding) else ()
        return Failure(f"died: {finding.signature}", telling, _cause(finding), finding.category)
    suspects = {rank for suspect in verdict.suspects for rank in suspect.ranks}
    return Failure(_hang_signature(evidence, suspects), nodes, FailureCause.EITHER)


def words_of(evidence: Evidence, verdict: Verdict) -> dict[str, str]:
    """Return what broke, in the words of the rank that the verdict is about (`Incident.cause`); empty if unknown."""
    root = _root(_roots(evidence), verdict)
    ended, finding = (root[0], root[1].finding) if root is not None else (None, None)
    if finding is None or (root is not None and root[1].one_of):
        ended, finding = None, finding or root_of_all(evidence.exits, evidence.rules)
    if finding is None:
        return {}
    return {
        "category": finding.category.name,
        "blame": finding.blame.value,
        "signature": signature(finding),
        "line": finding.text[:_LINE_CHARS],
        "place": finding.place,
        "rank": str(ended.rank) if ended is not None and ended.rank >= 0 else "",
        "node": ended.node if ended is not None else "",
        "meaning": finding.category.meaning,
        "remedy": finding.rule.remedy,
    }


def disk_path(exits: Iterable[RankExit], rules: Matcher | None = None) -> str:
    """Return the path on a full disk that a rank's last lines name; empty if they do not name one."""
    of_node = (path_of(f.detail) for _, f in exit_causes(exits, rules) if f.cause is Cause.DISK_FULL)
    return next((path for path in of_node if path), "")


def _roots(evidence: Evidence) -> list[tuple[RankExit, ExitCause]]:
    return [(e, f) for e, f in known_ends(evidence) if f.cause in ROOTS]


def _root(roots: Sequence[tuple[RankExit, ExitCause]], verdict: Verdict) -> tuple[RankExit, ExitCause] | None:
    """Return the end that the verdict is about: of a suspect, else the one that the verdict quotes, else the first."""
    suspects = {rank for suspect in verdict.suspects for rank in suspect.ranks}
    of_suspects = (item for item in roots if item[0].rank in suspects)
    quoted = (item for item in roots if item[1].finding is not None and item[1].detail in verdict.reason)
    return next(of_suspects, None) or next(quoted, None) or next(iter(roots), None)


def _cause(finding: ExitCause) -> FailureCause:
    return FailureCause.WORDS if in_words(finding) else _BY_CAUSE.get(finding.cause, FailureCause.PROGRAM)


def _telling(finding: ExitCause) -> bool:
    """Return whether two failures with this signature are the same: `exit 1` and a full disk may have any cause."""
    return finding.cause is not Cause.DISK_FULL and finding.signature != "exit 1"


def _unsure_where(evidence: Evidence, finding: ExitCause) -> bool:
    """Return whether ranks that are gone unseen leave it open where the failure began.

    An error without a known cause may follow from the end of these ranks. If their disappearance is the failure, they
    may also have finished, unless a node has lost two or more ranks: a single process may end by itself.
    """
    unseen = unseen_ends(known_ends(evidence))
    if finding.cause is Cause.VANISHED:
        return bool(unseen) and max(Counter(e.node for e, _ in unseen).values()) < 2
    return bool(unseen) and finding.cause is Cause.FAILED


def _node_signature(evidence: Evidence, nodes: tuple[str, ...]) -> str:
    told = [s for s in evidence.node_signals if s.node in nodes and (s.kind is SignalKind.NODE_DOWN or blames_node(s))]
    kinds = sorted({s.kind.value for s in told})
    if kinds:
        return f"node: {kinds[0]}"
    if not evidence.captures:
        return ""
    last = evidence.captures[-1]
    return "node: silent" if set(nodes) & set(last.missing_nodes) else ""


def _hang_signature(evidence: Evidence, suspects: set[int]) -> str:
    if not evidence.captures:
        return "hang"
    ranks = [r for r in evidence.captures[-1].ranks if not suspects or r.rank in suspects]
    labels = Counter(rank_place(r).label for r in ranks)
    where = labels.most_common(1)[0][0] if labels else ""
    return f"hang at {where}" if where else "hang"
