"""Shows a diagnosis as text or JSON: the root, who is at fault, the consequences, its incident, the lines read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from slurm_robust.cli.diagnosis.reading import LinePlace, LinesRead, shown_signals
from slurm_robust.cli.diagnosis.saved_incidents import SavedIncident
from slurm_robust.cli.diagnosis.subject import Subject
from slurm_robust.cli.state import clock
from slurm_robust.cli.table import plain
from slurm_robust.core.model import road_words
from slurm_robust.core.text import duration, first_sentence
from slurm_robust.diagnose.findings import LogFinding
from slurm_robust.diagnose.resembling import Resemblance
from slurm_robust.diagnose.root import Diagnosis
from slurm_robust.diagnose.signature import signature

_MAX_SHOWN = 6
_MAX_INCIDENTS = 3
_WIDE = len("what to do: ")
_BLAME = {
    "node": "the node that printed it",
    "shared": "something that several nodes share; no single node",
    "program": "the program, its data or its settings; no node",
    "either": "a node or the program: this log alone does not tell",
    "nobody": "nobody: somebody wanted the end",
}


def as_text(diagnosis: Diagnosis, reading: LinesRead, subject: Subject, resembles: Sequence[Resemblance]) -> list[str]:
    """Return the diagnosis for people. Control codes in a log do not reach the terminal."""
    lines = _leading_text(reading.leads) if reading.leads is not None else []
    if not lines or diagnosis.root is not None:
        lines += _root_text(diagnosis, reading)
    else:
        lines += _others_text(diagnosis, reading.places)
    lines[1:1] = _live_text(subject)
    saved = [subject.incident] if subject.incident is not None else subject.incidents[:_MAX_INCIDENTS]
    for number, incident in enumerate(saved):
        lines += _titled("incident:", _incident_text(incident) if not number else [_in_a_line(incident)])
    if subject.incident is None and len(subject.incidents) > _MAX_INCIDENTS:
        lines += _titled("", [f"and {len(subject.incidents) - _MAX_INCIDENTS} older"])
    lines += _titled("resembles:", [text for one in resembles for text in _resemblance_text(one)])
    if subject.job or subject.incident is not None or reading.notes:
        lines += _titled("read:", [f"{path}, {count} lines" for path, count in reading.read.items()] or ["nothing"])
        unread = [str(path) for path in subject.files if str(path) not in reading.read]
        hint = "the job's output, which may hold other attempts' errors too: srobust diagnose"
        lines += _titled("not read:", ([f"{hint} {' '.join(unread)}"] if unread else []) + reading.notes)
    return [plain(line) for line in lines]


def as_json(
    diagnosis: Diagnosis, reading: LinesRead, subject: Subject, resembles: Sequence[Resemblance]
) -> dict[str, Any]:
    """Return the diagnosis for tools, in the form of docs/json.md."""
    root = diagnosis.root
    saved = [subject.incident] if subject.incident is not None else subject.incidents
    return {
        "category": diagnosis.category.name,
        "blame": diagnosis.blame.value,
        "blame_why": reading.faults or diagnosis.why,
        "meaning": diagnosis.category.meaning,
        "urgency": diagnosis.category.urgency.value,
        "remedy": root.rule.remedy if root is not None else diagnosis.category.remedy,
        "signature": signature(root) if root is not None else "",
        "root": _finding_json(root, reading.places) if root is not None else None,
        "followed": [_finding_json(finding, reading.places) for finding in diagnosis.followed],
        "also": [_finding_json(finding, reading.places) for finding in diagnosis.also],
        "earlier": [_finding_json(finding, reading.places) for finding in diagnosis.earlier],
        "leads": reading.leads.id if reading.leads is not None else "",
        "job": subject.job,
        "silent_since_s": subject.silent_since_s,
        "incidents": [_incident_json(incident) for incident in saved],
        "resembles": [_resemblance_json(one) for one in resembles],
        "read": list(reading.read),
        "notes": list(reading.notes),
    }


def _live_text(subject: Subject) -> list[str]:
    """Say that the job runs, for how long it has been silent, and how to see where it stands."""
    since_s = subject.silent_since_s
    if since_s is None:
        return []
    said = f"its last line or step is {duration(max(0.0, time.time() - since_s))} old ({clock(since_s)})"
    return _titled("now:", [f"job {subject.job} runs; {said}", f"where its ranks stand: srobust stacks {subject.job}"])


def _root_text(diagnosis: Diagnosis, reading: LinesRead) -> list[str]:
    root, category, places = diagnosis.root, diagnosis.category, reading.places
    if root is None:
        return [category.meaning, *_titled("what to do:", [category.remedy]), *_others_text(diagnosis, places)]
    blame = _BLAME[diagnosis.blame.value]
    if reading.faults:
        blame = f"the node: {reading.faults}"
    elif diagnosis.why:
        blame = f"{blame}; {diagnosis.why}"
    lines = [
        f"{category.name}: {category.meaning}",
        *_titled("root:", [root.text[:300], _where(root, places) + _attempt(root) * bool(diagnosis.earlier)]),
        *_titled("blame:", [blame]),
        *_titled("what to do:", [root.rule.remedy]),
    ]
    return lines + _others_text(diagnosis, places)


def _leading_text(saved: SavedIncident) -> list[str]:
    """Return the incident's own verdict, and what was done about it."""
    incident = saved.incident
    if incident is None or incident.verdict is None:
        return []
    plan = incident.plan
    done = f"{road_words(plan.road.value)}: {first_sentence(plan.reason)}" if plan is not None else "nothing yet"
    verdict = f"{incident.verdict.conclusion.value}: {first_sentence(incident.verdict.reason)}"
    return [verdict, *_titled("done:", [f"{done}; came to: {incident.outcome or 'it is open'}"])]


def _others_text(diagnosis: Diagnosis, places: Sequence[LinePlace]) -> list[str]:
    lines = list[str]()
    for title, some in (
        ("followed:", diagnosis.followed), ("also there:", diagnosis.also), ("earlier:", diagnosis.earlier),
    ):  # fmt: skip
        earlier = title == "earlier:"
        shown = [
            f"{f.category.name}: {f.text[:160]} ({_where(f, places)}{_attempt(f) * earlier})" for f in some[:_MAX_SHOWN]
        ]
        more = [f"and {len(some) - _MAX_SHOWN} more"] if len(some) > _MAX_SHOWN else []
        lines += _titled(title, shown + more)
    return lines


def _titled(title: str, texts: Sequence[str]) -> list[str]:
    """Return the texts, one a line, the first one behind its title."""
    return [f"{title if not number else '':<{_WIDE}}{text}" for number, text in enumerate(texts)]


def _where(finding: LogFinding, places: Sequence[LinePlace]) -> str:
    place = places[finding.number]
    own = f", in {finding.place}" if finding.place else ""
    if place.rank is not None:
        return f"rank {place.rank} on {place.node or '?'}, line {place.line} of its last ones ({place.file}){own}"
    if place.saved:
        return f"line {place.line} of the last ones that name no rank ({place.file}){own}"
    return f"{place.file}:{place.line}{own}"


def _attempt(finding: LogFinding) -> str:
    return f", attempt {finding.attempt + 1}"


def _in_a_line(saved: SavedIncident) -> str:
    incident = saved.incident
    road = f"{road_words(incident.plan.road.value)}; " if incident is not None and incident.plan is not None else ""
    came = (incident.outcome or "it is open") if incident is not None else ""
    return f"{saved.id}, {clock(saved.at_s)}: {road}{came}"


def _incident_text(saved: SavedIncident) -> list[str]:
    incident = saved.incident
    lines = [f"{saved.id}, {clock(saved.at_s)} ({saved.folder})"]
    if incident is not None and incident.verdict is not None:
        lines.append(f"{incident.verdict.conclusion.value}: {first_sentence(incident.verdict.reason)}")
    if incident is not None and incident.plan is not None:
        lines.append(f"{road_words(incident.plan.road.value)}: {first_sentence(incident.plan.reason)}")
    if incident is not None:
        lines.append(f"came to: {incident.outcome or 'it is open'}")
    if saved.exits:
        first = saved.exits[0]
        how = f"signal {first.signal}" if first.signal else f"exit code {first.exit_code}"
        how = "nobody saw how" if not first.signal and first.exit_code is None else how
        lines.append(f"{len(saved.exits)} ranks ended, first rank {first.rank} on {first.node or '?'} ({how})")
    signals = shown_signals(saved)
    lines += [f"{clock(s.at_s)} {s.node} {s.kind.value}: {s.detail[:160]}" for s in signals[:_MAX_SHOWN]]
    if len(signals) > _MAX_SHOWN:
        lines.append(f"and {len(signals) - _MAX_SHOWN} more signals")
    return lines


def _resemblance_text(one: Resemblance) -> list[str]:
    past = one.past
    nodes = f" on {', '.join(past.nodes)}" if past.nodes else ""
    came = f"{past.done or 'nothing was done'}; {past.outcome or 'it is open'}"
    helped = {True: "it helped: ", False: "it did not help: ", None: ""}[past.helped]
    return [f"{clock(past.at_s)} job {past.job}{nodes}: {past.incident} ({one.why})", f"  {helped}{came}"]


def _finding_json(finding: LogFinding, places: Sequence[LinePlace]) -> dict[str, Any]:
    place = places[finding.number]
    return {
        "category": finding.category.name, "blame": finding.blame.value, "rule": finding.rule.id, "text": finding.text,
        "file": place.file, "line": place.line, "rank": place.rank, "node": place.node, "place": finding.place,
        "attempt": finding.attempt + 1,
    }  # fmt: skip


def _incident_json(saved: SavedIncident) -> dict[str, Any]:
    incident = saved.incident
    verdict, plan = (incident.verdict, incident.plan) if incident is not None else (None, None)
    return {
        "id": saved.id, "folder": str(saved.folder), "opened_at_s": saved.at_s,
        "conclusion": verdict.conclusion.value if verdict is not None else "",
        "reason": verdict.reason if verdict is not None else "",
        "road": plan.road.value if plan is not None else "", "evict": list(plan.evict) if plan is not None else [],
        "outcome": incident.outcome if incident is not None else "",
        "ended": [
            {"rank": e.rank, "node": e.node, "at_s": e.at_s, "exit_code": e.exit_code, "signal": e.signal}
            for e in saved.exits
        ],
        "signals": [
            {"kind": s.kind.value, "at_s": s.at_s, "node": s.node, "detail": s.detail} for s in shown_signals(saved)
        ],
    }  # fmt: skip


def _resemblance_json(one: Resemblance) -> dict[str, Any]:
    past = one.past
    return {
        "incident": past.incident, "job": past.job, "opened_at_s": past.at_s, "nodes": list(past.nodes),
        "done": past.done, "outcome": past.outcome, "helped": past.helped, "why": one.why,
    }  # fmt: skip
