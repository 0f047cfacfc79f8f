"""Collects past incidents to compare a failure with: from the daemon's journal, and from folders beside the output."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from slurm_robust.cli.diagnosis.saved_incidents import SavedIncident, cause_of, incidents_in, read_incident
from slurm_robust.config.site import Config
from slurm_robust.core.text import shortened
from slurm_robust.diagnose.resembling import PastIncident

_MAX_INCIDENTS = 1000
_MAX_REPORTS = 200
"""The most pages of other incidents that are opened; they may be on a slow file system."""
_MAX_JOB_FOLDERS = 100
_WENT_ON = frozenset({"resumed", "came_back", "went_on"})
_WENT_NOT = frozenset({"ended", "not_started", "aborted", "refused", "superseded", "stopped"})


def journal_incidents(config: Config) -> list[dict[str, Any]]:
    """Return the newest incidents of the daemon, as `srobust incidents --json` shows them; none if it cannot be read.

    Only files are read, never the daemon asked: a diagnosis must not wait for it.
    """
    from slurm_robust.daemon.api import state_snapshot  # noqa: PLC0415 (slow to load)
    from slurm_robust.daemon.store.journal import FILE_NAME, Journal  # noqa: PLC0415 (the same)
    from slurm_robust.daemon.store.schema import JournalError  # noqa: PLC0415 (the same)

    folder = Path(config.daemon.state_dir)
    try:
        if (folder / FILE_NAME).exists():
            journal = Journal.open(folder, read_only=True)
            try:
                return state_snapshot.recent_incidents(journal, limit=_MAX_INCIDENTS)
            finally:
                journal.close()
    except (OSError, JournalError, sqlite3.Error):
        pass  # the snapshot is for who may not read the journal
    try:
        state = json.loads((folder / state_snapshot.FILE_NAME).read_text(encoding="utf-8"))
        return [one for one in state["incidents"] if isinstance(one, dict)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def past_incidents(
    journal: Sequence[dict[str, Any]], saved: Iterable[SavedIncident], without: Container[str] = ()
) -> list[PastIncident]:
    """Return every incident once, except those that are diagnosed themselves; the journal's own record goes first."""
    folders = {one.id: one for one in saved}
    found = {}
    for count, row in enumerate(journal):
        with contextlib.suppress(KeyError, TypeError, AttributeError):  # a snapshot of another version
            page = folders.get(row["id"]) or (_page_of(row) if count < _MAX_REPORTS else None)
            found[row["id"]] = _of_journal(row, page)
    for name, one in folders.items():
        if name not in found and one.incident is not None:
            found[name] = _of_folder(one)
    return [one for name, one in found.items() if name not in without]


def incidents_beside(files: Iterable[Path]) -> list[SavedIncident]:
    """Saved incidents of all jobs that write where these files are."""
    found = []
    for place in dict.fromkeys(path.resolve().parent for path in files):
        try:
            job_folders = sorted(place.glob("slurm-robust-*"), key=lambda p: -p.stat().st_mtime)[:_MAX_JOB_FOLDERS]
        except OSError:
            continue
        for folder in job_folders:
            found += incidents_in(folder, whole=False)
    return found


def newest_of(saved: Iterable[SavedIncident], files: Sequence[Path]) -> set[str]:
    """Return the newest incident of each job that these files belong to by name: it is the failure itself."""
    newest: dict[str, SavedIncident] = {}
    for one in saved:
        job = one.incident.job if one.incident is not None else ""
        of_job = re.compile(rf"(?<![0-9]){re.escape(job)}(?![0-9])")
        if job and any(of_job.search(path.name) for path in files):
            newest[job] = max(newest.get(job, one), one, key=lambda i: i.at_s)
    return {one.id for one in newest.values()}


def _page_of(row: dict[str, Any]) -> SavedIncident | None:
    report = row.get("report") or ""
    return read_incident(Path(report) / str(row["id"]), whole=False) if report.startswith("/") else None


def _of_journal(row: dict[str, Any], page: SavedIncident | None) -> PastIncident:
    verdict, plan, outcome = row["verdict"], row["plan"] or {}, row["outcome"]
    done = _done(plan.get("road", ""), plan.get("evict", ()))
    if done and row["mode"] == "observe":
        done = f"would have done: {done}"
    cause = cause_of(row.get("cause")) or (dict(page.cause) if page is not None else {})
    texts = [verdict.get("why", ""), plan.get("reason", ""), row["reason"], *(_texts(page) if page is not None else ())]
    tried = bool(done) and row["mode"] != "observe"
    helped = True if outcome in _WENT_ON or "first_new_step" in row["times"] else None
    if helped is None and outcome in _WENT_NOT:
        helped = False
    nodes = tuple(plan.get("evict", ())) or tuple(verdict.get("suspects", ()))
    ended = f"{outcome}: {row['reason']}" if outcome and row["reason"] != outcome else outcome
    return PastIncident(
        row["id"], row["job"], row["opened_at_s"], nodes, done, shortened(ended, 300), helped if tried else None, cause,
        "\n".join(texts),
    )  # fmt: skip


def _of_folder(saved: SavedIncident) -> PastIncident:
    incident = saved.incident
    assert incident is not None
    plan, verdict = incident.plan, incident.verdict
    suspects = tuple(sorted({s.node for s in verdict.suspects if s.node})) if verdict is not None else ()
    done = _done(plan.road.value, plan.evict) if plan is not None else ""
    helped = True if done and "first_new_step" in incident.times else None
    return PastIncident(
        saved.id, incident.job, incident.opened_at_s, (plan.evict if plan is not None else ()) or suspects, done,
        shortened(incident.outcome, 300), helped, saved.cause, "\n".join(_texts(saved)),
    )  # fmt: skip


def _texts(saved: SavedIncident) -> list[str]:
    incident = saved.incident
    if incident is None:
        return []
    verdict = [incident.verdict.reason, incident.verdict.detail] if incident.verdict is not None else []
    return [*verdict, *incident.notes, incident.outcome]


def _done(road: str, evict: Sequence[str]) -> str:
    """Return what was decided, in words."""
    words = road.replace("_", " ")
    return f"{words} without {', '.join(evict)}" if words and evict else words
