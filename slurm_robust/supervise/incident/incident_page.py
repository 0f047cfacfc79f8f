"""One incident as its supervisor keeps it, and the page that the on-call opens."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from slurm_robust.model import TIME_KEYS, Plan, Signal, Verdict

_CLOCK = "%Y-%m-%d %H:%M:%S"


@dataclass
class Record:
    """What is known of one incident; written as `incident.json` and `report.md` at every change."""

    id: str
    job: str
    attempt: str
    opened_at_s: float
    signals: list[Signal] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    plan: Plan | None = None
    outcome: str = ""
    notes: list[str] = field(default_factory=list)
    tree: str = ""

    def stamp(self, key: str, at_s: float | None = None) -> None:
        """Set one of the scoreboard's times (`model.TIME_KEYS`), once."""
        assert key in TIME_KEYS, key
        self.times.setdefault(key, round(time.time() if at_s is None else at_s, 3))

    def judged(self, verdict: Verdict) -> None:
        """Keep the verdict; `localised` is when what stands now was first concluded, so it moves with every change."""
        before = self.verdict
        self.verdict = verdict
        if before is None or (before.conclusion, _who(before)) != (verdict.conclusion, _who(verdict)):
            self.times.pop("localised", None)
        self.stamp("localised")

    def to_json(self) -> str:
        """For tools, and for the next attempt's supervisor."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    def page(self) -> str:
        """For people: Markdown."""
        lines = [f"# Incident {self.id}", "", f"Job {self.job}, attempt `{self.attempt}`.", ""]
        if self.verdict is not None:
            lines += ["## Who", "", f"**{self.verdict.conclusion.value}**: {self.verdict.reason}", ""]
            if self.verdict.detail:
                lines += [f"{self.verdict.detail}.", ""]
            lines += [
                f"* {s.node}, rank{'s' if len(s.ranks) > 1 else ''} {', '.join(map(str, s.ranks)) or '?'}: "
                f"{s.why} (confidence {s.confidence:.2f})"
                for s in self.verdict.suspects
            ]
            lines += [f"* not seen: {m}" for m in self.verdict.missing]
            lines.append("")
        if self.plan is not None:
            lines += ["## What was decided", "", f"**{self.plan.road.value}**: {self.plan.reason}", ""]
        if self.outcome:
            lines += ["## How it ended", "", self.outcome, ""]
        lines += ["## When", "", *times_table(self.times), ""]
        if self.signals:
            lines += ["## What was seen", ""]
            lines += [f"* {_clock(s.at_s)} {s.kind.value} {s.node}: {s.detail}" for s in self.signals]
            lines.append("")
        if self.notes:
            lines += ["## Notes", "", *(f"* {n}" for n in self.notes), ""]
        if self.tree:
            lines += ["## Where the ranks stood", "", "```", self.tree.rstrip(), "```", ""]
        return "\n".join(lines)


def _who(verdict: Verdict) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((s.node, s.ranks) for s in verdict.suspects)


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


def load(text: bytes) -> Record | None:
    """Read an earlier attempt's `incident.json`, to go on with it; None where it is no such file."""
    try:
        return msgspec.json.decode(text, type=Record)
    except msgspec.DecodeError:
        return None
