"""The two files of an incident: `incident.json` for tools, and `report.md`, the page that the on-call opens."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from slurm_robust.model import TIME_KEYS, Incident

_CLOCK = "%Y-%m-%d %H:%M:%S"


def to_json(incident: Incident) -> str:
    """`incident.json`: for tools, and for the next attempt's supervisor."""
    return msgspec.json.format(msgspec.json.encode(incident), indent=1).decode()


def load(text: bytes) -> Incident | None:
    """Read an earlier attempt's `incident.json`, to go on with it; None where it is no such file."""
    try:
        return msgspec.json.decode(text, type=Incident)
    except msgspec.DecodeError:
        return None


def page(incident: Incident) -> str:
    """`report.md`: for people, in Markdown."""
    lines = [f"# Incident {incident.id}", "", f"Job {incident.job}, attempt `{incident.attempt}`.", ""]
    if incident.verdict is not None:
        lines += ["## Who", "", f"**{incident.verdict.conclusion.value}**: {incident.verdict.reason}", ""]
        if incident.verdict.detail:
            lines += [f"{incident.verdict.detail}.", ""]
        lines += [
            f"* {s.node}, rank{'s' if len(s.ranks) > 1 else ''} {', '.join(map(str, s.ranks)) or '?'}: "
            f"{s.why} (confidence {s.confidence:.2f})"
            for s in incident.verdict.suspects
        ]
        lines += [f"* not seen: {m}" for m in incident.verdict.missing]
        lines.append("")
    if incident.plan is not None:
        lines += ["## What was decided", "", f"**{incident.plan.road.value}**: {incident.plan.reason}", ""]
    if incident.outcome:
        lines += ["## How it ended", "", incident.outcome, ""]
    lines += ["## When", "", *times_table(incident.times), ""]
    if incident.signals:
        lines += ["## What was seen", ""]
        lines += [f"* {_clock(s.at_s)} {s.kind.value} {s.node}: {s.detail}" for s in incident.signals]
        lines.append("")
    if incident.notes:
        lines += ["## Notes", "", *(f"* {n}" for n in incident.notes), ""]
    if incident.tree:
        lines += ["## Where the ranks stood", "", "```", incident.tree.rstrip(), "```", ""]
    return "\n".join(lines)


def _clock(at_s: float) -> str:
    return time.strftime(_CLOCK, time.localtime(at_s))


def times_table(times: Mapping[str, float]) -> list[str]:
    """The scoreboard as a Markdown table: each time, and seconds since the one before."""
    rows = ["| what | when | after the one before | after the fault |", "| --- | --- | ---: | ---: |"]
    first = before = None
    for key in TIME_KEYS:
        at_s = times.get(key)
        if at_s is None:
            continue
        since = "" if before is None else f"{at_s - before:.1f} s"
        total = "" if first is None else f"{at_s - first:.1f} s"
        rows.append(f"| {key.replace('_', ' ')} | {_clock(at_s)} | {since} | {total} |")
        first = at_s if first is None else first
        before = at_s
    return rows
