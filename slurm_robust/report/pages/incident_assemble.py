"""Assembles the view of one incident's page, from its folder and from the daemon's journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from slurm_robust.core.model import Incident, Plan, Verdict
from slurm_robust.core.text import duration
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.ranks import name as ranks_named
from slurm_robust.report.pages.formats import count
from slurm_robust.report.pages.incident_view import IncidentStage, IncidentView, LinkedFile
from slurm_robust.report.pages.rank_rows import rank_rows, shown_capture
from slurm_robust.report.pages.view import BigNumber, Cell, FigureTable, TableColumn, Unit

STAGES = {
    "suspected": "until it was suspected",
    "captured": "stacks captured",
    "localised": "verdict reached",
    "decided": "plan decided",
    "accepted": "daemon decided",
    "stopped": "old step ended",
    "tests_started": "tests prepared",
    "tests_done": "nodes tested",
    "running": "started again",
    "imports_done": "imports",
    "process_groups_ready": "process groups made",
    "checkpoint_loaded": "checkpoint loaded",
    "first_new_step": "first step made",
}
"""The stage that each stamp ends."""
_LONGEST_S = 30 * 86400.0
MAX_ROWS = 300
_SUSPECTS = 8
_LARGEST = 1e15


@dataclass(frozen=True)
class IncidentSources:
    """Everything that was read about one incident. The job may write its folder, so none of this is trusted.

    Attributes:
        incident: The content of `incident.json`.
        journal: The incident in the form of `srobust incidents --json`.
        story: Lines of `story.jsonl`, lines of other incidents included.
        tests: Each `tests-N.json`.
        problems: Sentences about files that could not be read.
    """

    incident: Incident | None = None
    journal: Mapping[str, Any] = field(default_factory=dict)
    evidence: Evidence | None = None
    story: tuple[Mapping[str, Any], ...] = ()
    tests: tuple[Mapping[str, Any], ...] = ()
    files: tuple[LinkedFile, ...] = ()
    folder: str = ""
    problems: tuple[str, ...] = ()


def incident_view(sources: IncidentSources, made_at_s: float, offset_s: int) -> IncidentView:
    """Return the view of an incident whose page or journal entry is known."""
    incident, journal, evidence = sources.incident, sources.journal, sources.evidence
    verdict = incident.verdict if incident is not None else None
    times = _times(incident, journal)
    suspects = frozenset(rank for s in (verdict.suspects if verdict is not None else ()) for rank in s.ranks)
    rows, told = rank_rows(evidence, suspects) if evidence is not None else ((), "")
    stages, doubts = stages_of(times)
    own_id = incident.id if incident is not None else str(journal.get("id", ""))
    own_attempt = journal.get("attempt")
    return IncidentView(
        id=own_id,
        job=incident.job if incident is not None else str(journal.get("job", "")),
        cluster=str(own_attempt.get("cluster", "")) if isinstance(own_attempt, dict) else "",
        opened_at_s=incident.opened_at_s if incident is not None else _number(journal.get("opened_at_s")) or 0.0,
        made_at_s=made_at_s,
        headline=_headline(verdict, journal),
        facts=_facts(incident, journal),
        numbers=_numbers(times, verdict, evidence),
        stages=stages,
        capture=shown_capture(evidence) if evidence is not None else None,
        suspects=suspects,
        rows=rows,
        rows_told=told,
        plan=_plan(incident.plan if incident is not None else None, journal.get("plan")),
        cause=tuple((key, str(value)) for key, value in (incident.cause if incident else {}).items() if value),
        signals=_signals(incident),
        tests=tuple(table for number, test in enumerate(sources.tests, 1) for table in tables_of_test(test, number)),
        actions=_actions(journal.get("actions")),
        story=_story(sources.story, own_id, times),
        files=sources.files,
        folder=sources.folder,
        doubts=(*sources.problems, *doubts),
        offset_s=offset_s,
    )


def _times(incident: Incident | None, journal: Mapping[str, Any]) -> dict[str, float]:
    """Return the stamps of both sources; of a stamp in both, the daemon's counts, as in `srobust incidents`."""
    told = journal.get("times")
    read = {key: _number(value) for key, value in told.items()} if isinstance(told, dict) else {}
    known = {key: value for key, value in read.items() if value is not None}
    return (dict(incident.times) if incident is not None else {}) | known


def stages_of(times: Mapping[str, float]) -> tuple[tuple[IncidentStage, ...], tuple[str, ...]]:
    """Return the time between stamps, in order of time; and sentences about stamps that cannot be true."""
    order = {key: place for place, key in enumerate(("fault", *STAGES))}
    known = sorted(((at_s, order[key], key) for key, at_s in times.items() if key in order and at_s > 0))
    stages, doubts = [], []
    for (begin_s, _, before), (end_s, _, key) in pairwise(known):
        if end_s - begin_s > _LONGEST_S:
            doubts.append(
                f"The time of {key!r} is {duration(end_s - begin_s)} after that of {before!r}: a clock was wrong. "
                "It and what follows is not drawn."
            )
            break
        stages.append(IncidentStage(STAGES.get(key, key), begin_s, end_s))
    if times.get("fault", 0.0) > min(times.get("suspected", 1e12), times.get("decided", 1e12)):
        doubts.append("The fault has a later time than its suspicion: the clocks of its nodes differ.")
    return tuple(stages), tuple(doubts)


def _headline(verdict: Verdict | None, journal: Mapping[str, Any]) -> str:
    if verdict is not None:
        words = {"culprit": "Culprit", "none": "No culprit", "user_code": "The program's own error"}
        return f"{words.get(verdict.conclusion.value, 'Undetermined')}: {verdict.reason}"
    told = journal.get("verdict")
    why = str(told.get("why", "")) if isinstance(told, dict) else ""
    return why or "No verdict is known of this incident."


def _facts(incident: Incident | None, journal: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    if journal:
        pairs += [("user", str(journal.get("user", ""))), ("mode", str(journal.get("mode", "")))]
        came = str(journal.get("outcome") or journal.get("state", ""))
        pairs.append(("came to", f"{came}: {journal.get('reason', '')}".rstrip(": ")))
    if incident is not None:
        pairs.append(("ended", incident.outcome or "it is still open"))
        pairs.append(("attempt", incident.attempt))
        if incident.verdict is not None:
            pairs.append(("detail", incident.verdict.detail))
            for s in incident.verdict.suspects:
                where = f"{s.node or 'no node'}, {ranks_named(s.ranks)}" if s.ranks else s.node
                pairs.append(("suspect", f"{where} (confidence {s.confidence:.2f}): {s.why} {s.detail}".rstrip()))
            pairs += [("not seen", missing) for missing in incident.verdict.missing[:_SUSPECTS]]
        pairs += [("note", note) for note in incident.notes[:_SUSPECTS]]
    return tuple((name, value) for name, value in pairs if value)


def _numbers(times: Mapping[str, float], verdict: Verdict | None, evidence: Evidence | None) -> tuple[BigNumber, ...]:
    def between(begin: str, end: str) -> float | None:
        return times[end] - times[begin] if begin in times and end in times and times[end] >= times[begin] else None

    suspects = sorted({s.node for s in verdict.suspects if s.node}) if verdict is not None else []
    back_s = between("fault", "first_new_step")
    back = BigNumber("back_s", "fault to first step", back_s, Unit.SECONDS, "" if back_s else "not back yet")
    noticed = BigNumber("noticed_s", "fault to suspicion", between("fault", "suspected"), Unit.SECONDS)
    decided = BigNumber("decided_s", "suspicion to decision", between("suspected", "decided"), Unit.SECONDS)
    ranks = evidence.world_size if evidence is not None else None
    told = (
        f"suspects: {', '.join(suspects[:3])}{' …' if len(suspects) > 3 else ''}" if suspects else "no node suspected"
    )
    return (back, noticed, decided, BigNumber("ranks", "ranks", ranks, Unit.COUNT, told))


def _plan(plan: Plan | None, of_daemon: object) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    if plan is not None:
        pairs += [("road", plan.road.value.replace("_", " ")), ("why", plan.reason)]
        pairs += [("without", ", ".join(plan.evict)), ("rung", plan.rung)]
        pairs.append(("tests", ", ".join(test.value for test in plan.tests)))
        pairs.append(("pause", duration(plan.pause_s) if plan.pause_s else ""))
        pairs.append(("code", f"version {plan.code}" if plan.code else ""))
        pairs.append(("checkpoint", "one from before the loss went bad" if plan.roll_back else ""))
        pairs.append(("exit code", str(plan.exit_code) if plan.exit_code is not None else ""))
    if isinstance(of_daemon, dict):
        for key in ("road", "reason", "evict", "kept", "standby", "seat", "time_limit_min"):
            value = of_daemon.get(key)
            shown = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
            # Where it reports its own plan, the journal has the same.
            if plan is None or shown not in (plan.road.value, plan.reason):
                pairs.append((f"daemon: {key.replace('_', ' ')}", shown))
    return tuple((name, value) for name, value in pairs if value)


def _table(caption: str, columns: Sequence[TableColumn], rows: list[tuple[Cell, ...]]) -> FigureTable | None:
    if not rows:
        return None
    more = len(rows) - MAX_ROWS
    return FigureTable(
        caption, tuple(columns), tuple(rows[:MAX_ROWS]), f"{more:,} more are left out." if more > 0 else ""
    )


def _signals(incident: Incident | None) -> FigureTable | None:
    columns = [TableColumn("at_s", "when", Unit.AT)]
    columns += [TableColumn(key, key) for key in ("kind", "node", "rank", "source", "detail")]
    rows: list[tuple[Cell, ...]] = [
        (s.at_s, s.kind.value, s.node, "" if s.rank is None else str(s.rank), s.source, s.detail)
        for s in (incident.signals if incident is not None else ())
    ]
    return _table("Signals, in order of time", columns, rows)


def _actions(actions: object) -> FigureTable | None:
    columns = [TableColumn("called_at_s", "called", Unit.AT), TableColumn("done_at_s", "done", Unit.AT)]
    columns += [TableColumn(key, key) for key in ("kind", "target", "error", "reason")]
    rows: list[tuple[Cell, ...]] = [
        (_number(a.get("called_at_s")), _number(a.get("done_at_s")), *(str(a.get(c.key, "")) for c in columns[2:]))
        for a in (actions if isinstance(actions, list) else ())
        if isinstance(a, dict)
    ]
    return _table("Actions of the daemon", columns, rows)


def _story(lines: Sequence[Mapping[str, Any]], own_id: str, times: Mapping[str, float]) -> FigureTable | None:
    """Return the lines of this incident, and lines without an incident between its first and last stamp."""
    begin_s, end_s = min(times.values(), default=0.0) - 5, max(times.values(), default=0.0) + 5
    rows: list[tuple[Cell, ...]] = []
    for line in lines:
        at_s, of = _number(line.get("at_s")), line.get("incident")
        if at_s is not None and (of == own_id or (not of and begin_s <= at_s <= end_s)):
            rows.append((at_s, str(line.get("kind", "")), str(line.get("text", ""))))
    columns = [TableColumn("at_s", "when", Unit.AT), TableColumn("kind", "what"), TableColumn("text", "in words")]
    return _table("Lines of the job's story", columns, rows)


def tables_of_test(test: Mapping[str, Any], number: int) -> list[FigureTable]:
    """Findings and stages of one `tests-N.json`, which holds what `srobust test --json` prints."""
    nodes = test.get("nodes")
    of = f", {count(len(nodes), 'node')}" if isinstance(nodes, list) else ""
    findings: list[tuple[Cell, ...]] = [
        (
            str(f.get("test", "")),
            str(f.get("kind", "")),
            ", ".join(map(str, f.get("nodes") or ())),
            str(f.get("reason", "")),
        )
        for f in _objects(test.get("findings"))
    ] or [("", "", "", "nothing was found")]
    stages: list[tuple[Cell, ...]] = [
        (str(s.get("name", "")), _number(s.get("took_s"))) for s in _objects(test.get("stages"))
    ]
    columns = [TableColumn(key, key) for key in ("test", "kind", "nodes", "reason")]
    tables = [
        _table(f"Tests {number}{of}: {test.get('verdict', 'no verdict')}", columns, findings),
        _table("Their stages", [TableColumn("stage", "stage"), TableColumn("took_s", "took", Unit.SECONDS)], stages),
    ]
    return [table for table in tables if table is not None]


def _objects(raw: object) -> list[dict[str, Any]]:
    return [one for one in raw if isinstance(one, dict)] if isinstance(raw, list) else []


def _number(raw: object) -> float | None:
    """Return a finite number; None for others: JSON may hold any."""
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or abs(raw) > _LARGEST:
        return None
    return float(raw)
