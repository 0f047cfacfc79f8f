"""Votes on nodes: names nodes that do not answer, that lost all their ranks, or that report a fault of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from slurm_robust.core.model import Conclusion, Signal, SignalKind, Suspect, Verdict
from slurm_robust.core.text import joined, shortened
from slurm_robust.diagnose.reported_gpu_faults import blames_node
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.exit_causes import Cause, known_ends
from slurm_robust.localize.grades import Ground
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.blocking import CONFIDENCE_ONE_CAPTURE, SURE
from slurm_robust.localize.stacks.motion import busy_waiting, moving
from slurm_robust.localize.votes.held_ranks import gone_for_good
from slurm_robust.localize.votes.outside_collective import others_wait
from slurm_robust.marks.node_findings import NOW

CONFIDENCE_SILENT = 0.95
"""Slurm, or two rounds of silence, say that the node is gone."""
CONFIDENCE_LOST_ALL = 0.85
"""Confidence if all ranks of the node are gone while the other ranks wait for them."""
SAME_MOMENT_S = 5.0
"""Closer ends are not ordered."""
CONFIDENCE_FAULT = 0.9
_URGENT = 2
"""Weight of a fault for which a job leaves its node at once."""
_SLOWS_ONLY = frozenset(
    (
        *("gpu_rows", "gpu_pages", "gpu_ecc", "gpu_temperature", "gpu_throttle"),
        *("throttled", "overheated", "pcie_corrected", "memory_corrected"),
    )
)
"""Kinds of faults that can wait for a checkpoint, since work goes on beside them: they do not stop a job."""
_XIDS_THAT_WAIT = frozenset((63, 92, 94, 156, 157, 160, 161, 168))
"""XIDs that can wait: rows to remap, corrected errors, and memory that only its own program lost."""
CONFIDENCE_FAULT_SPIN = 0.85
"""Confidence in a fault if hosts use a processor at one place: they may wait for their GPUs, or compute."""


def judge_silence(evidence: Evidence) -> Verdict | None:
    """Return a verdict if Slurm calls nodes down or their agents do not answer; None if all answer.

    An agent may die alone: while other ranks move, its silence does not name its node.
    """
    nodes = set(evidence.rank_nodes.values())
    silent = _silent(evidence)
    if not silent:
        return None
    if len(silent) > max(1, len(nodes) // 2):
        nodes_text = shortened(", ".join(sorted(silent)), 60)
        reason = f"{len(silent)} of {len(nodes)} nodes are silent ({nodes_text}): a shared cause, or our agents failed"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=("what the silent nodes share",))
    certain = all(sure for _, sure in silent.values())
    down = {s.node for s in evidence.node_signals if s.kind is SignalKind.NODE_DOWN}
    on_the_move, spin = _moving_ranks(evidence)
    wanted = "an answer from " + ", ".join(sorted(silent))
    whys = {node: f"node {node} is silent: {why}" for node, (why, _) in silent.items()}
    if on_the_move and not set(silent) <= down:
        reason = f"{'; '.join(whys.values())}; but {name(on_the_move)} move, so perhaps only an agent is lost"
        return Verdict(Conclusion.UNDETERMINED, reason, missing=(wanted,))
    confidence = {node: CONFIDENCE_SILENT if sure else CONFIDENCE_ONE_CAPTURE for node, (_, sure) in silent.items()}
    suspects = _suspects(evidence, whys, confidence)
    missing = (*_spin_missing(spin), *(() if certain else (wanted,)))
    # Slurm knows whether a node is lost. A node that thrashes for seconds has a silent agent, too.
    ground = Ground.NODE_DOWN if set(silent) <= down else Ground.NODE_SILENT
    return _culprit(whys.values(), suspects, missing, ground)


def _silent(evidence: Evidence) -> dict[str, tuple[str, bool]]:
    """Return silent nodes, how their silence is known, and whether it is certain."""
    signals = evidence.node_signals
    down = {s.node: s.detail or "down" for s in signals if s.kind is SignalKind.NODE_DOWN}
    quiet = {s.node: s.detail or s.kind.value for s in signals if s.kind is SignalKind.AGENT_SILENT}
    absent: Counter[str] = Counter()
    for capture in evidence.captures[-2:]:
        absent.update(set(capture.missing_nodes))
    now = set(evidence.captures[-1].missing_nodes) if evidence.captures else set()
    silent: dict[str, tuple[str, bool]] = {}
    for node in sorted(set(evidence.rank_nodes.values())):
        if node in down:
            silent[node] = (f"Slurm reports: {down[node]}", True)
        elif node in now and absent[node] >= 2:
            silent[node] = (f"its agent did not answer the last {absent[node]} captures", True)
        elif node in now:
            silent[node] = ("its agent did not answer one capture", False)
        elif not evidence.captures and node in quiet:
            silent[node] = (quiet[node], False)
    return silent


def judge_lost_all(evidence: Evidence) -> Verdict | None:
    """Return a verdict if all ranks of a node, at least two, are gone without a known end; else None.

    One process may end by itself; if all processes of a node end at once, they share the cause. An end that is known by
    its code or its last lines is left to the vote on exits. Ranks that are gone may also have finished, so the verdict
    is only corroborated if the other ranks wait for them.
    """
    ended = {e.rank for e in evidence.exits}
    ends = [(e, f) for e, f in known_ends(evidence) if e.rank in ended]
    if any(finding.cause is not Cause.VANISHED for _, finding in ends):
        return None
    ended_s = {e.rank: e.at_s for e, _ in ends}
    gone = {*ended_s, *gone_for_good(evidence.captures)}
    ranks_of: dict[str, set[int]] = {}
    for rank, node in evidence.rank_nodes.items():
        ranks_of.setdefault(node, set()).add(rank)
    lost = {node: ranks for node, ranks in ranks_of.items() if len(ranks) > 1 and ranks <= gone}
    if not lost or len(lost) > len(ranks_of) / 2 or (ends and _told_of(evidence) & set(lost)):
        return None
    here = frozenset().union(*lost.values())
    elsewhere = [at_s for rank, at_s in ended_s.items() if rank not in here]
    if elsewhere and min(elsewhere) + SAME_MOMENT_S < min((ended_s[r] for r in here if r in ended_s), default=0.0):
        return None
    sure = others_wait(evidence, gone, SURE.span_s)
    confidence = CONFIDENCE_LOST_ALL if sure else CONFIDENCE_ONE_CAPTURE
    whys = {node: f"node {node} lost all its {len(lost[node])} ranks, and no exit of them was seen" for node in lost}
    suspects = _suspects(evidence, whys, dict.fromkeys(lost, confidence))
    missing = () if sure else (f"the exit codes of {name(here)}", "two captures in which the others wait for them")
    return _culprit(whys.values(), suspects, missing, Ground.ENDED)


def _told_of(evidence: Evidence) -> set[str]:
    """Return nodes of which a signal or a silent agent tells more than that their ranks are gone."""
    absent = evidence.captures[-1].missing_nodes if evidence.captures else ()
    told = (s for s in evidence.node_signals if s.kind is not SignalKind.NODE_FAULT or blames_node(s))
    return {*absent, *(s.node for s in told)}


def judge_faults(evidence: Evidence) -> Verdict | None:
    """Return a verdict if a node reports a fault of its own while nothing moves; else None.

    Of several nodes with faults, the nodes with the worst faults are named: a switch that takes one node's link away
    often disturbs the links of its neighbours for a moment, too.
    """
    nodes = set(evidence.rank_nodes.values())
    found = _holding(s for s in evidence.node_signals if s.kind is SignalKind.NODE_FAULT and s.node in nodes)
    worst = max((weight for weight, _ in found.values()), default=0)
    faults = {node: detail for node, (weight, detail) in found.items() if weight == worst}
    on_the_move, spin = _moving_ranks(evidence)
    if not faults or len(faults) > max(1, len(nodes) // 2) or on_the_move:
        return None
    sure = len(evidence.captures) > 1 and not spin
    whys = {node: f"node {node} reports {faults[node][:160]}{', and no rank moves' if sure else ''}" for node in faults}
    confidence = CONFIDENCE_FAULT if sure else CONFIDENCE_FAULT_SPIN if spin else CONFIDENCE_ONE_CAPTURE
    suspects = _suspects(evidence, whys, dict.fromkeys(faults, confidence))
    missing = () if sure else _spin_missing(spin) or ("a second capture, to see whether anything moves",)
    ground = Ground.NODE_FAULT if worst == _URGENT else Ground.NODE_TROUBLED
    return _culprit(whys.values(), suspects, missing, ground)


def _holding(signals: Iterable[Signal]) -> dict[str, tuple[int, str]]:
    """Return node → the worst of its faults that may hold a job, as weight and sentence.

    A fault whose end was reported does not count any more: a port that came back, a check that passed again.
    """
    standing: dict[tuple[str, object, object], Signal] = {}
    lines: list[Signal] = []
    for signal in sorted(signals, key=lambda s: s.at_s):
        told = signal.evidence
        key = signal.node, told.get("kind"), told.get("port")
        if told.get("code") is not None or told.get("kind") is None:
            lines.append(signal)
        elif blames_node(signal):
            standing[key] = signal
        else:
            standing.pop(key, None)
    found: dict[str, tuple[int, str]] = {}
    for signal in (*standing.values(), *filter(blames_node, lines)):
        weight = _weight(signal)
        if weight > found.get(signal.node, (0, ""))[0]:
            found[signal.node] = weight, signal.detail
    return found


def _weight(fault: Signal) -> int:
    """Return how well the fault explains a job that stands still: 0 for not at all."""
    urgency, kind = fault.evidence.get("urgency", NOW), fault.evidence.get("kind")
    if urgency == NOW:
        return _URGENT
    return 0 if kind in _SLOWS_ONLY or fault.evidence.get("code") in _XIDS_THAT_WAIT else 1


def name_reported(rank_nodes: Mapping[int, str], whys: Mapping[str, str]) -> Verdict:
    """Return the verdict on nodes that are left for their own reports, whatever the ranks do."""
    suspects = tuple(
        Suspect(node, tuple(sorted(r for r, n in rank_nodes.items() if n == node)), CONFIDENCE_FAULT, whys[node])
        for node in sorted(whys)
    )
    return _culprit((s.why for s in suspects), suspects, (), Ground.NODE_FAULT)


def _culprit(whys: Iterable[str], suspects: tuple[Suspect, ...], missing: tuple[str, ...], ground: Ground) -> Verdict:
    return Verdict(
        Conclusion.CULPRIT, joined(whys), suspects, missing=missing, corroborated=not missing, grade=ground.grade
    )


def _suspects(evidence: Evidence, whys: Mapping[str, str], confidence: Mapping[str, float]) -> tuple[Suspect, ...]:
    ranks: dict[str, list[int]] = {}
    for rank, node in evidence.rank_nodes.items():
        ranks.setdefault(node, []).append(rank)
    return tuple(
        Suspect(node, tuple(sorted(ranks.get(node, ()))), confidence[node], whys[node]) for node in sorted(whys)
    )


def _moving_ranks(evidence: Evidence) -> tuple[list[int], list[int]]:
    """Return ranks that moved between the last two captures, and ranks that only used a processor at one place."""
    if len(evidence.captures) < 2:
        return [], []
    ranks = [r.rank for r in evidence.captures[-1].ranks]
    moved = moving(evidence.captures, ranks)
    spin = busy_waiting(evidence.captures, moved)
    return [rank for rank in moved if rank not in spin], sorted(spin)


def _spin_missing(spin: list[int]) -> tuple[str, ...]:
    return (f"whether {name(spin)} wait or compute: they use a processor at one place",) if spin else ()
