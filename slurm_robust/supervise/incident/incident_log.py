"""Keeps the incidents of one job, the current one among them, and writes each to its folder."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from slurm_robust.core.model import TIME_KEYS, Incident, Plan, Signal, Verdict
from slurm_robust.supervise.session import Session

_WINDOW_S = 3600.0
_CLOCK = "%Y-%m-%d %H:%M:%S"


class IncidentLog:
    """Keeps the current incident, and writes its files.

    Attributes:
        current: The open incident; None if there is none. An incident stays open after a relaunch, until the new
            attempt's first new step.
    """

    def __init__(self, session: Session) -> None:
        self.current: Incident | None = None
        self._session = session
        self._idle_at_s: deque[float] = deque(maxlen=session.settings.suspicions_per_hour)
        self._full = False
        self._last_second = 0

    # -- opening and closing ------------------------------------------------------------------------------------------

    def open(self, attempt: str, fault_at_s: float, text: str, signal: Signal | None = None, **data: Any) -> Incident:
        """Open an incident. If another one is still open, its new attempt failed before its first new step.

        `attempt` is empty if the step was not launched by us. `text` and `data` are for the story.
        """
        job = self._session.job
        now_s = self._begin(attempt, "The attempt that followed failed before its first new step.", signal)
        self.set_time("fault", fault_at_s)
        self.set_time("suspected", now_s)
        job.announce_suspicion()
        output = [str(path) for path in self._session.output_files]
        self._session.folder.log_event("suspected", text, incident=self.incident.id, output=output, **data)
        return self.incident

    def open_update(self, attempt: str, text: str, verdict: Verdict, plan: Plan) -> Incident:
        """Open the page of an update of the code: nothing is wrong, and nothing is suspected."""
        self._begin(attempt, "An update of the code ended the attempt that followed, before its first new step.")
        self.update(verdict=verdict, plan=plan)
        self.set_time("decided")
        self.save()
        self._session.folder.log_event("update", text, incident=self.incident.id, code=plan.code)
        return self.incident

    def _begin(self, attempt: str, note: str, signal: Signal | None = None) -> float:
        """Begin another page; `note` is added to a page that is still open. Return the time."""
        job = self._session.job
        if self.current is not None:
            self.add_note(note)
            self.save()
        now_s = self._session.clock.now_s()
        # An attempt may fail within the second in which an update ended the one before.
        self._last_second = max(int(now_s), self._last_second + 1)
        name = f"{job.name.replace('+', '_')}-r{job.restart_count}-{self._last_second}"
        self.current = Incident(
            name, job.name, attempt or job.attempt.key, now_s, signals=() if signal is None else (signal,)
        )
        return now_s

    def reopen(self, name: str) -> None:
        """Go on with the incident that the attempt before this one left open, if there is one."""
        session, job, found = self._session, self._session.job, None
        with contextlib.suppress(OSError):
            found = load(session.folder.read(f"{name}/incident.json"))
        # A supervisor before this one may have opened an incident of the attempt that still runs.
        running = session.channel.running_attempt if session.channel is not None else ""
        if found is None or "first_new_step" in found.times or found.attempt in (running, job.attempt.key):
            return
        self.current = found
        self.set_time("running")

    def close(self, outcome: str) -> Incident:
        """Write the outcome down; no incident is open any more."""
        self.update(outcome=outcome)
        self.save()
        closed, self.current = self.incident, None
        return closed

    # -- the current incident -----------------------------------------------------------------------------------------

    @property
    def incident(self) -> Incident:
        """The current incident, which must be open."""
        assert self.current is not None
        return self.current

    def update(self, **changes: Any) -> None:
        """Replace the current incident by one with these fields."""
        self.current = replace(self.incident, **changes)

    def set_time(self, key: str, at_s: float | None = None) -> None:
        """Set one of the scoreboard's times (`model.TIME_KEYS`), unless it is already set."""
        assert key in TIME_KEYS, key
        at_s = round(self._session.clock.now_s() if at_s is None else at_s, 3)
        self.update(times={**self.incident.times, key: self.incident.times.get(key, at_s)})

    def move_time(self, key: str) -> None:
        """Set one of the times to now, even if it is already set: of several tests the last end counts."""
        self.update(times={k: at_s for k, at_s in self.incident.times.items() if k != key})
        self.set_time(key)

    def add_note(self, text: str) -> None:
        """Add a sentence that is worth knowing."""
        self.update(notes=(*self.incident.notes, text))

    def set_captured(self, tree: str) -> None:
        """Keep the merged stacks of the last capture."""
        self.set_time("captured")
        self.update(tree=tree)

    def set_verdict(self, verdict: Verdict) -> None:
        """Keep the verdict; `localised` is when the present culprits were first named, so it moves when they change."""
        before = self.incident.verdict
        if before is None or (before.conclusion, _culprits(before)) != (verdict.conclusion, _culprits(verdict)):
            self.move_time("localised")
        self.update(verdict=verdict)
        self.set_time("localised")

    def save(self) -> None:
        """Write the incident's page, and its data for tools."""
        incident, folder = self.incident, self._session.folder
        folder.write(f"{incident.id}/incident.json", to_json(incident))
        folder.write(f"{incident.id}/report.md", page(incident))

    # -- suspicions that led to nothing -------------------------------------------------------------------------------

    def count_idle_suspicion(self) -> None:
        """Count a suspicion after which nothing was done."""
        self._idle_at_s.append(self._session.clock.now_s())

    @property
    def full(self) -> bool:
        """Whether short pauses are ignored, since many suspicions led to nothing; reported at most once an hour."""
        was, self._full = self._full, False
        now_s = self._session.clock.now_s()
        if len(self._idle_at_s) == self._idle_at_s.maxlen and now_s - self._idle_at_s[0] < _WINDOW_S:
            self._full = True
            if not was:
                until = time.strftime("%H:%M", time.localtime(self._idle_at_s[0] + _WINDOW_S))
                text = (
                    f"{len(self._idle_at_s)} suspicions within an hour came to nothing: until {until} a silence is "
                    "investigated only once strong evidence would be acted on. If the program often pauses: announce "
                    "it with progress.phase(…), or raise supervise.suspicion_floor_s"
                )
                self._session.folder.log_event("note", text)
        return self._full


def _culprits(verdict: Verdict) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((s.node, s.ranks) for s in verdict.suspects)


def to_json(incident: Incident) -> str:
    """Return the content of `incident.json`, for tools and for the next attempt's supervisor."""
    return msgspec.json.format(msgspec.json.encode(incident), indent=1).decode()


def load(text: bytes) -> Incident | None:
    """Read an earlier attempt's `incident.json`, to go on with it; return None if it is not such a file."""
    try:
        return msgspec.json.decode(text, type=Incident)
    except msgspec.DecodeError:
        return None


def page(incident: Incident) -> str:
    """Return the content of `report.md`, for people, in Markdown."""
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
    if incident.cause:
        lines += ["## What broke", "", *_cause_lines(incident.cause), ""]
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


def _cause_lines(cause: Mapping[str, str]) -> list[str]:
    rank, node = cause.get("rank"), cause.get("node")
    who = (f"Rank {rank}" if rank else "A rank") + (f" on {node}" if node else "")
    place = f", in {cause['place']}" if cause.get("place") else ""
    return [
        f"{who} wrote{place}:",
        "",
        f"    {cause.get('line', '')}",
        "",
        f"**{cause.get('category', '')}**: {cause.get('meaning', '')} {cause.get('remedy', '')}",
    ]


def _clock(at_s: float) -> str:
    return time.strftime(_CLOCK, time.localtime(at_s))


def times_table(times: Mapping[str, float]) -> list[str]:
    """Return the scoreboard as a Markdown table: each time, and the seconds since the time before."""
    rows = ["| what | when | after the one before | after the fault |", "| --- | --- | ---: | ---: |"]
    first = before = None
    known = [key for key in TIME_KEYS if key in times]
    for key in sorted(known, key=times.__getitem__):
        at_s = times[key]
        since = "" if before is None else f"{at_s - before:.1f} s"
        total = "" if first is None else f"{at_s - first:.1f} s"
        rows.append(f"| {key.replace('_', ' ')} | {_clock(at_s)} | {since} | {total} |")
        first = at_s if first is None else first
        before = at_s
    return rows
