"""The only module that knows the code under test: what was seen becomes evidence, and evidence is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from campaign.cases import Case
from campaign.node_reports import NodeReport
from campaign.scene import ProcessView, RankView, RecorderView, Scene, ThreadView
from slurm_robust.core.model import Conclusion, Signal, SignalKind, Verdict
from slurm_robust.localize import judge as judging
from slurm_robust.localize.evidence import (
    Capture,
    CapturedProcess,
    CapturedThread,
    Evidence,
    Progress,
    RankCapture,
    RankExit,
    StackFrame,
)
from slurm_robust.localize.recorder.dump import Operation, ProcessGroup, RankDump

SITE = "/opt/env/lib/python3.11/site-packages/"
STD = "/usr/lib/python3.11/"
CHECKOUT = "/opt/megatron-lm/"
EPOCH_S = 1_700_000_000.0


@lru_cache(maxsize=4096)
def _frames(shown: tuple[str, ...], source: str) -> tuple[StackFrame, ...]:
    made = []
    for label in shown:
        function, _, place = label.partition(" ")
        file, _, line = place.rpartition(":")
        if file.startswith("megatron/") and source == "checkout":
            file = CHECKOUT + file
        elif file.startswith(("torch/", "megatron/", "transformers/", "numpy/", "requests/")):
            file = SITE + file
        elif not file.startswith("/"):
            file = STD + file
        made.append(StackFrame(function, file, int(line)))
    return tuple(made)


@lru_cache(maxsize=4096)
def _threads(shown: tuple[ThreadView, ...], source: str) -> tuple[CapturedThread, ...]:
    return tuple(
        CapturedThread(_frames(t.frames, source), t.name, 100 + i, i == 0, t.active, t.owns_gil)
        for i, t in enumerate(shown)
    )


def _process(seen: ProcessView, parent: int, source: str) -> CapturedProcess:
    threads = _threads(seen.threads, source)
    return CapturedProcess(
        seen.pid, parent, seen.state, seen.command, seen.cpu_s, seen.io_bytes, seen.wchan, threads, seen.error,
        len(threads) if seen.command.startswith("pt_") else -1,
    )  # fmt: skip


def _rank(seen: RankView, source: str, *, progress: bool) -> RankCapture:
    first = seen.processes[0].pid if seen.processes else 0
    processes = tuple(_process(p, 1 if i == 0 else first, source) for i, p in enumerate(seen.processes))
    known = Progress(seen.step, seen.phase, seen.age_s) if progress else None
    return RankCapture(seen.rank, seen.node, processes, known)


def _dump(seen: RecorderView, groups: Mapping[str, ProcessGroup]) -> RankDump:
    pending = tuple(
        Operation(e.group, e.seq, e.order, e.name, e.peer, e.state, f"[[[{e.size}]]]", EPOCH_S + e.at_s)
        for e in seen.pending
    )
    return RankDump(seen.rank, groups, seen.counters, seen.numbers, pending, EPOCH_S + seen.last_at_s)


def _recorders(case: Case, recorders: Sequence[RecorderView]) -> dict[int, RankDump]:
    if not recorders:
        return {}
    made = {g.name: ProcessGroup(g.name, g.kind, g.ranks) for g in case.layout.all_groups()}
    found = {}
    for seen in recorders:
        mine = {group.name: made[group.name] for group in case.layout.groups_of(seen.rank)}
        found[seen.rank] = _dump(seen, mine)
    return found


def _capture(scene: Scene, case: Case) -> Capture:
    ranks = tuple(_rank(r, case.eyes.source, progress=case.progress) for r in scene.ranks)
    return Capture(EPOCH_S + scene.at_s, ranks, scene.silent)


def _signal(report: NodeReport) -> Signal:
    """As the supervisor makes it of a finding."""
    told = {"kind": report.kind, "urgency": report.urgency, "gpus": (), "port": report.port, "code": report.code}
    return Signal(SignalKind.NODE_FAULT, EPOCH_S + report.at_s, "nodewatch", report.detail, report.node, evidence=told)


def evidence_of(case: Case) -> Evidence:
    """What the localiser is given of a case: everything that was seen, nothing of the truth."""
    layout = case.layout
    before = _recorders(case, case.recorders) if case.recorders_later else {}
    return Evidence(
        layout.world,
        {rank: layout.node(rank) for rank in range(layout.world)},
        tuple(_capture(scene, case) for scene in (*case.scenes, *case.later)),
        tuple(RankExit(e.rank, layout.node(e.rank), EPOCH_S + e.at_s, e.code, e.signal, e.lines) for e in case.exits),
        tuple(_signal(report) for report in case.reports),
        dict(case.told_layout),
        _recorders(case, case.recorders_later or case.recorders),
        recorder_before=before,
    )


def verdict_of(evidence: Evidence) -> Verdict:
    """The verdict of the code under test."""
    return judging.judge(evidence)


def votes() -> tuple[str, ...]:
    """Names of the votes that it asks, in their order."""
    return tuple(vote.__name__ for vote in _votes())


def verdict_without(evidence: Evidence, vote: str) -> Verdict:
    """The verdict with one vote left out."""
    kept = judging.VOTES
    module: Any = judging
    module.VOTES = tuple(v for v in _votes() if v.__name__ != vote)
    try:
        return judging.judge(evidence)
    finally:
        module.VOTES = kept


def _votes() -> Sequence[Any]:
    return judging.VOTES


def blames(verdict: Verdict) -> bool:
    """It names somebody."""
    return verdict.conclusion is Conclusion.CULPRIT and bool(verdict.suspects)


def nodes_of(verdict: Verdict) -> frozenset[str]:
    """The nodes that it names; none if it names nobody."""
    return frozenset(s.node for s in verdict.suspects) if blames(verdict) else frozenset()


def evicted_of(verdict: Verdict) -> frozenset[str]:
    """The nodes that it would have evicted at the action limit: those that may be at fault by this evidence alone."""
    return frozenset(s.node for s in verdict.suspects if s.infrastructure) if blames(verdict) else frozenset()


def confidence_of(verdict: Verdict) -> float:
    """How sure it is of its first suspect."""
    return max((s.confidence for s in verdict.suspects), default=0.0) if blames(verdict) else 0.0
