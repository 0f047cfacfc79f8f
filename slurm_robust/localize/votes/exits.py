"""Votes on ranks that ended: names the rank that died first, and its node if the death tells about the node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slurm_robust.core.model import Conclusion, Signal, SignalKind, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.diagnose.reported_gpu_faults import blames_node, fault_beside
from slurm_robust.localize.evidence import Evidence, RankExit
from slurm_robust.localize.exit_causes import Cause, ExitCause, hardware_line, in_words, known_ends, unseen_ends
from slurm_robust.localize.grades import Ground
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.blocking import SURE
from slurm_robust.localize.votes.outside_collective import others_wait
from slurm_robust.localize.votes.progress import SAME_MOMENT_S, finished_before
from slurm_robust.marks.node_findings import NOW

CLEAR_LEAD_S = 1.0
"""Two polls of an agent."""

_NODE_GONE = (SignalKind.NODE_DOWN, SignalKind.AGENT_SILENT)
_WITH_ITS_NODE = (Cause.HARDWARE, Cause.SIGNAL, Cause.FAILED, Cause.VANISHED)
"""Causes of ends that the end of the node explains: a rank with another cause still had a node to report it."""
_BY_WORDS = (
    Cause.LAUNCH,
    Cause.HARDWARE,
    Cause.EITHER,
    Cause.DISK_FULL,
    Cause.SHARED,
    Cause.USER_CODE,
    Cause.OOM,
)
"""Causes that an error message shows, the surest first."""
ROOTS = (*_BY_WORDS, Cause.SIGNAL, Cause.FAILED, Cause.VANISHED)

_Ends = list[tuple[RankExit, ExitCause]]
_LEFT_EARLY = "the program ended there too early, no node is at fault"

# Set by hand for the first version: an order of trust, not yet frequencies measured on a campaign.
CONFIDENCE_HARDWARE = 0.9
CONFIDENCE_NODE_GONE = 0.95
CONFIDENCE_OOM = 0.7
CONFIDENCE_SIGNAL = 0.6
CONFIDENCE_EITHER = 0.6
CONFIDENCE_UNKNOWN = 0.4


def judge_exits(evidence: Evidence) -> Verdict | None:
    """Return the verdict if ranks ended; None if the exits alone explain nothing (no exits, or only victims)."""
    found = _judged(evidence)
    shared = {id(e.shared_lines): e.shared_lines for e in evidence.exits}
    line_found = next((line for lines in shared.values() if (line := hardware_line(lines, evidence.rules))), "")
    if found is None or not line_found or line_found in found.reason or any(s.infrastructure for s in found.suspects):
        return found
    return replace(
        found,
        reason=f"{found.reason}; the output also says {line_found!r}, without naming the rank",
        missing=(*found.missing, "which rank printed it: srun --label, or an error handler that names the rank"),
    )


def judge_lost_peers(evidence: Evidence) -> Verdict | None:
    """Return an undetermined verdict if ranks ended that no other vote explains; None if no rank ended."""
    if {e.rank for e in evidence.exits} <= finished_before(evidence):
        return None
    reason = f"{name(e.rank for e in evidence.exits)} lost a peer, and no rank is known to have died first"
    return Verdict(Conclusion.UNDETERMINED, reason, missing=("the first death: exit codes or output of all ranks",))


def _judged(evidence: Evidence) -> Verdict | None:
    causes = known_ends(evidence)
    if not causes:
        return None
    unseen = unseen_ends(causes)
    told = [(e, f) for e, f in causes if f.cause in ROOTS and f.cause is not Cause.VANISHED]
    if told and unseen:
        # If no rank lives and srun still waits for one, a bare exit code may also only follow from its disappearance.
        all_gone = len({e.rank for e, _ in causes}) >= evidence.world_size
        if (found := _either_first(told, unseen, bare=all_gone)) is not None:
            return found
        # A rank that is gone unseen may have finished: a reason that another rank has given goes before it.
        causes = [(e, f) for e, f in causes if f.cause is not Cause.VANISHED]
    if told and all(f.cause is Cause.FAILED for _, f in told) and _down_untold(evidence):
        return None  # the vote on silent nodes names it
    return _judged_by(causes, evidence)


def _judged_by(causes: _Ends, evidence: Evidence) -> Verdict | None:
    gone = _gone_nodes(evidence)
    failed = [(e, f) for e, f in causes if f.cause is not Cause.FINISHED]
    if not failed:
        return _finished(evidence, [e for e, _ in causes])
    on_gone = sorted({e.node for e, f in failed if e.node in gone and f.cause in _WITH_ITS_NODE})
    if on_gone and _earliest_on(on_gone, failed):
        return _node_gone(evidence, on_gone, gone, failed)
    roots = [(e, f) for e, f in failed if f.cause in ROOTS]
    if not roots:
        before = finished_before(evidence)
        left = [e for e, f in causes if f.cause is Cause.FINISHED and e.rank not in before]
        return _left_early(left, failed) or _no_root(failed, evidence)
    early = [(e, f) for e, f in roots if e.at_s <= roots[0][0].at_s + SAME_MOMENT_S]
    for cause in _BY_WORDS:
        chosen = [(e, f) for e, f in early if f.cause is cause]
        if chosen and not (cause is Cause.SHARED and _killed_before(early, chosen[0][0].at_s)):
            return _by_message(evidence, cause, chosen, failed)
    return _unstartable(evidence, failed) or _without_message(evidence, _likely_first(early), failed)


def _either_first(told: _Ends, unseen: _Ends, *, bare: bool) -> Verdict | None:
    """Return the verdict if ranks are gone unseen at the moment of an error that may only follow from their end.

    With `bare`, an exit code without a message counts as such an error, too.
    """
    first_s = min(e.at_s for e, _ in told)
    gone = [(e, f) for e, f in unseen if first_s - SAME_MOMENT_S <= e.at_s <= first_s + CLEAR_LEAD_S]
    words = [(e, f) for e, f in told if f.cause is Cause.FAILED and (bare or in_words(f))]
    if not gone or not words or any(f.cause is not Cause.FAILED for _, f in told):
        return None
    nodes = ", ".join(sorted({e.node for e, _ in gone}))
    who = f"{name(e.rank for e, _ in gone)} on {nodes} are gone, and no end of them was reported"
    reason = f"{who}; {_who(words)} ended with {words[0][1].detail!r} at the same moment: which was first is not known"
    return Verdict(Conclusion.UNDETERMINED, reason, missing=(f"the exit codes of {name(e.rank for e, _ in gone)}",))


def _down_untold(evidence: Evidence) -> bool:
    """Return whether Slurm calls a node down whose ranks have no reported end: its end explains those of others."""
    down = {s.node for s in evidence.node_signals if s.kind is SignalKind.NODE_DOWN and s.node}
    told = {e.node for e in evidence.exits if e.exit_code is not None or e.signal}
    return bool((down & set(evidence.rank_nodes.values())) - told)


def _who(ends: _Ends) -> str:
    """Return the names of these ranks, as `one of` them if no more is known."""
    known = f"{name(e.rank for e, _ in ends)}"
    return f"one of {known}" if any(f.one_of for _, f in ends) else known


def _unstartable(evidence: Evidence, failed: _Ends) -> Verdict | None:
    """Return the verdict if nothing could be started; None if some node can start it: the others may lack a mount."""
    if not all(f.unstartable for _, f in failed):
        return None
    if set(evidence.rank_nodes.values()) - {e.node for e, _ in failed} and all(e.rank >= 0 for e, _ in failed):
        return None
    reason = f"nothing could be started ({failed[0][1].detail!r}): the command line is wrong, no node is at fault"
    return Verdict(Conclusion.USER_CODE, reason, corroborated=True)


def _killed_before(early: _Ends, at_s: float) -> bool:
    """Return whether a rank was killed or crashed before: others may have failed because they could not reach it.

    A kill or a crash ends a rank at once. SIGBUS does not count: a lost file system causes it.
    """
    killed = [e for e, f in early if f.cause is Cause.SIGNAL and f.signature not in ("SIGABRT", "SIGBUS")]
    return any(e.at_s <= at_s for e in killed)


def _likely_first(early: _Ends) -> _Ends:
    """Return the deaths that look like the first, of deaths at the same moment.

    A kill or a crash ends a rank at once; its peers fail, abort or vanish later. Without a kill, an error message says
    more than an exit code; without a message, a lead of a second decides.
    """
    taken = [(e, f) for e, f in early if f.cause is Cause.SIGNAL and f.signature != "SIGABRT"]
    taken = taken or [(e, f) for e, f in early if in_words(f)]
    if taken:
        return taken
    lead_s = early[0][0].at_s + CLEAR_LEAD_S
    return [(e, f) for e, f in early if e.at_s < lead_s]


def _gone_nodes(evidence: Evidence) -> dict[str, str]:
    gone = {s.node: s.detail or s.kind.value for s in evidence.node_signals if s.node and s.kind in _NODE_GONE}
    if evidence.captures:
        for node in evidence.captures[-1].missing_nodes:
            gone.setdefault(node, "its agent did not answer")
    return gone


def _earliest_on(nodes: Iterable[str], failed: _Ends) -> bool:
    """Return whether no rank elsewhere died well before the ranks of these nodes, for a reason of its own."""
    members = set(nodes)
    here_s = min(e.at_s for e, _ in failed if e.node in members)
    elsewhere = [e.at_s for e, f in failed if e.node not in members and f.cause in ROOTS]
    return not elsewhere or here_s <= min(elsewhere) + SAME_MOMENT_S


def _finished(evidence: Evidence, ended: list[RankExit]) -> Verdict | None:
    if len({e.rank for e in ended}) >= evidence.world_size:
        return Verdict(Conclusion.NONE, "every rank ended with exit code 0")
    at_last = {e.rank for e in ended} - finished_before(evidence)
    if not at_last:
        # The others went on without them: whatever holds them now is something else.
        return None
    who = name(at_last)
    if not others_wait(evidence, {e.rank for e in ended}):
        # Ranks do not end in the same second, and saving at the end takes its time.
        return Verdict(Conclusion.NONE, f"{who} ended with exit code 0, the others have not finished yet")
    reason = f"{who} ended with exit code 0 while the others wait in a collective"
    return Verdict(Conclusion.USER_CODE, f"{reason}: {_LEFT_EARLY}")


def _node_gone(evidence: Evidence, nodes: list[str], gone: dict[str, str], failed: _Ends) -> Verdict:
    suspects = tuple(
        Suspect(
            node,
            tuple(sorted(r for r, n in evidence.rank_nodes.items() if n == node))
            or tuple(sorted({e.rank for e, _ in failed if e.node == node})),
            CONFIDENCE_NODE_GONE,
            f"{name(e.rank for e, _ in failed if e.node == node)} vanished with node {node} ({gone[node]})",
        )
        for node in nodes
    )
    return _culprit(joined(s.why for s in suspects) + _victims(failed, set(nodes)), suspects)


def _left_early(left: list[RankExit], failed: _Ends) -> Verdict | None:
    """Return a verdict if some ranks ended with exit code 0, and other ranks lost them."""
    lost = [e for e, f in failed if f.cause is Cause.PEER_LOST]
    if not left or not lost or len(left) >= len(lost):
        return None
    reason = f"{name(e.rank for e in left)} ended with exit code 0, and {name(e.rank for e in lost)} lost a peer"
    return Verdict(Conclusion.USER_CODE, f"{reason}: {_LEFT_EARLY}")


def _no_root(failed: _Ends, evidence: Evidence) -> Verdict | None:
    if any(f.cause is Cause.PEER_LOST for _, f in failed):
        # Only victims are known: the rank that they lost must show in the captures before.
        return None
    what = f"{name(e.rank for e, _ in failed)} ended from outside ({failed[0][1].detail})"
    if down := sorted({s.node for s in evidence.node_signals if s.kind is SignalKind.NODE_DOWN and s.node}):
        return Verdict(Conclusion.NONE, f"{what}, since Slurm has lost {', '.join(down)} and ends the job's steps")
    return Verdict(Conclusion.NONE, f"{what}: the job was cancelled, preempted or out of time")


def _by_message(evidence: Evidence, cause: Cause, chosen: _Ends, failed: _Ends) -> Verdict:
    finding = chosen[0][1]
    who = _who([(e, f) for e, f in chosen if f.signature == finding.signature])
    after = _victims(failed, {e.node for e, _ in chosen})
    of_nobody = _of_nobody(cause, who, finding, after)
    if of_nobody is not None:
        return of_nobody
    nodes = sorted({e.node for e, _ in chosen if e.node})
    ended = f"ended with {finding.detail!r}"
    why_no_node = missing = ""
    if not nodes:
        why_no_node = f"{who} {ended}; on which rank or node is not known"
        missing = "exit codes of single ranks: the job's output file"
    elif cause is not Cause.OOM and len(nodes) > max(1, len(set(evidence.rank_nodes.values())) // 2):
        why_no_node = f"{who} on {len(nodes)} nodes {ended}: they share the cause (storage, fabric)"
        missing = "what those nodes share"
    elif finding.of_peer:
        why_no_node = f"{who} {ended}: it is about a peer or the link to it, and which one is not known"
        missing = "a test of the links between those nodes"
    if why_no_node:
        return Verdict(Conclusion.UNDETERMINED, f"{why_no_node}{after}", missing=(missing,))
    suspects = tuple(_spoken_suspect(evidence, node, [(e, f) for e, f in chosen if e.node == node]) for node in nodes)
    return _culprit(joined(s.why for s in suspects) + after, suspects)


def _of_nobody(cause: Cause, who: str, finding: ExitCause, after: str) -> Verdict | None:
    """Return the verdict for a cause that is not a single node's, whichever rank met it."""
    if cause is Cause.USER_CODE:
        reason = f"{who} raised {finding.detail!r}: the program's own error, no node is at fault{after}"
        return Verdict(Conclusion.USER_CODE, reason, corroborated=True, grade=Ground.ENDED.grade)
    if cause is Cause.LAUNCH:
        reason = f"Slurm could not start the step ({finding.detail}): the program never ran"
        return Verdict(Conclusion.UNDETERMINED, reason)
    if cause is Cause.DISK_FULL:
        reason = f"{who} found a full disk ({finding.detail}): several nodes may share it, so none is blamed{after}"
        return _shared_cause(reason, "which file system is full")
    if cause is Cause.SHARED:
        reason = f"{who} ended with {finding.detail!r}: what nodes share is not available, no node is at fault{after}"
        return _shared_cause(reason, "which service or file system it is")
    return None


def _shared_cause(reason: str, missing: str) -> Verdict:
    return Verdict(Conclusion.UNDETERMINED, reason, missing=(missing,), corroborated=True, grade=Ground.ENDED.grade)


_NOTE_EITHER = "a broken node and a wrong program both cause this, so its node stays in use for now"


def _spoken_suspect(evidence: Evidence, node: str, here: _Ends) -> Suspect:
    """Return the suspect for ranks that gave a reason for their end; the node is at fault if it reports a fault."""
    first, finding = here[0]
    ended = any(e in evidence.exits for e, _ in here)
    how = "died first" if ended else "raised this, and has not ended"
    why, cause = f"{_who(here)} on {node} {how}: {finding.detail}", finding.cause
    infrastructure = cause is Cause.HARDWARE
    if cause is Cause.EITHER:
        gpu = finding.category == "cuda_error"
        beside = fault_beside(node, first.at_s, evidence.node_signals) if gpu else None
        infrastructure = beside is not None
        why += f"; its node reports {beside.detail[:120]}" if beside is not None else f"; {_NOTE_EITHER}"
    unsure = CONFIDENCE_OOM if cause is Cause.OOM else CONFIDENCE_EITHER
    confidence = CONFIDENCE_HARDWARE if infrastructure else unsure
    return Suspect(node, tuple(sorted({e.rank for e, _ in here})), confidence, why, infrastructure=infrastructure)


def _faults(evidence: Evidence, node: str) -> list[Signal]:
    """Return the faults that this node itself reports and that can end a rank."""
    told = (s for s in evidence.node_signals if s.node == node and blames_node(s))
    # A fault of a lesser urgency, such as a link that was down for a moment, does not end a rank by itself.
    return [s for s in told if s.evidence.get("urgency", NOW) == NOW]


def _without_message(evidence: Evidence, early: _Ends, failed: _Ends) -> Verdict:
    if all(e.rank < 0 for e, _ in early):
        reason = f"the training step ended with {early[0][1].detail}, and no single rank is known to have died first"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("exit codes of single ranks: the job's output file",))
    nodes = sorted({e.node for e, _ in early})
    if len({e.rank for e, _ in early}) > 1 and len(nodes) > max(1, len(set(evidence.rank_nodes.values())) // 2):
        causes = ", ".join(sorted({f.detail for _, f in early}))
        who = name(e.rank for e, _ in early)
        reason = f"{who} on {len(nodes)} nodes died together ({causes}): which died first is not known"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("an error text, or the order of the deaths",))
    suspects = []
    for node in nodes:
        here = [(e, f) for e, f in early if e.node == node]
        finding = here[0][1]
        faulted = [s.detail for s in _faults(evidence, node)]
        confidence = CONFIDENCE_SIGNAL if finding.cause is Cause.SIGNAL else CONFIDENCE_UNKNOWN
        ranks = tuple(sorted({e.rank for e, _ in here}))
        why = f"{_who(here)} on {node} died first: {finding.detail}"
        if faulted:
            why, confidence = f"{why}; the node itself reports {faulted[0][:120]}", CONFIDENCE_HARDWARE
        else:
            why += "; there is no evidence against its node"
        suspects.append(Suspect(node, ranks, confidence, why, infrastructure=bool(faulted)))
    found = _culprit(joined(s.why for s in suspects) + _victims(failed, set(nodes)), tuple(suspects))
    # A rank that vanished may have finished: its agent sees no exit code. If other ranks wait, it has not.
    vanished = {e.rank for e, f in failed if f.cause is Cause.VANISHED}
    if vanished >= {e.rank for e, _ in failed} and not others_wait(evidence, vanished, SURE.span_s):
        wanted = (f"the exit code of {name(vanished)}", "two captures in which the others wait in a collective")
        return replace(found, corroborated=False, missing=wanted)
    return found


def _victims(failed: _Ends, nodes: set[str]) -> str:
    followed = sorted({e.rank for e, f in failed if e.node not in nodes})
    return f" ({name(followed)} only followed)" if followed else ""


def _culprit(reason: str, suspects: tuple[Suspect, ...]) -> Verdict:
    # A death is certain at once: a second capture adds nothing.
    return Verdict(Conclusion.CULPRIT, reason, suspects, corroborated=True, grade=Ground.ENDED.grade)
