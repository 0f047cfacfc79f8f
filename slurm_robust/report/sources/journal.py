"""Reads the daemon's journal of a stretch of time, as of one moment; reads journals of every version."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from slurm_robust.core.training_time import LEFT_ALONE
from slurm_robust.daemon.store.attempt_ledger import ClusterSize, PoolSize, SupervisedAttempt, attempt_of
from slurm_robust.daemon.store.drain_history import DrainJudge
from slurm_robust.daemon.store.journal import FILE_NAME, IncidentRow, Journal
from slurm_robust.daemon.store.schema import MIGRATIONS, JournalError
from slurm_robust.report.facts import ClosedIncident, Facts, NodeDrain, NodeRepair, NodeStrike, TakenAction
from slurm_robust.report.sources.wording import examples, utc
from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.values import expand

_BAD_ROW = (ValueError, KeyError, TypeError, AttributeError, SlurmParseError)  # msgspec's errors are ValueErrors
_OVERLAPS = "opened_at_s < :to_s AND (closed_at_s IS NULL OR closed_at_s >= :from_s)"
_NEW_TABLES = ("attempts", "pool_sizes", "cluster_sizes")
_T = TypeVar("_T")


def read(state_dir: str | Path, from_s: float, to_s: float, now_s: float) -> Facts:
    """Return the facts of the journal in this folder; no facts but a doubt if the journal cannot be read."""
    try:
        with closing(Journal.open(state_dir, read_only=True)) as journal, _one_moment(journal.db):
            return _JournalReading(journal, from_s, to_s, now_s).facts()
    except JournalError as error:
        return Facts(from_s, to_s, now_s, doubts=(_unread(Path(state_dir), error),), journal_read=False)
    except sqlite3.Error as error:
        sentence = f"The journal in {state_dir} cannot be read to its end ({error}): nothing of it is shown."
        return Facts(from_s, to_s, now_s, doubts=(sentence,), journal_read=False)


def _unread(state_dir: Path, error: JournalError) -> str:
    path = state_dir / FILE_NAME
    if os.access(path, os.F_OK) and not os.access(path, os.R_OK):
        return f"The journal was not read: {path} is closed to this user; root and the daemon's user can read it."
    if not path.exists():
        return (
            f"The journal was not read: there is no {path}, the journal cannot be opened. It is on the daemon's "
            "machine: type this there, or name its folder by --journal."
        )
    return f"The journal was not read: {error}."


@contextmanager
def _one_moment(db: sqlite3.Connection) -> Iterator[None]:
    # What the daemon writes meanwhile is not seen, so that no action is without its incident.
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.rollback()


class _JournalReading:
    """One reading of the journal; rows that make no sense are counted."""

    def __init__(self, journal: Journal, from_s: float, to_s: float, now_s: float) -> None:
        self._journal = journal
        self._db = journal.db
        self._range = {"from_s": from_s, "to_s": to_s}
        self._now_s = now_s
        self._doubts: list[str] = []
        names = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables = {str(row["name"]) for row in names}

    def facts(self) -> Facts:
        """Return everything that the journal knows of the time."""
        self._note_version()
        attempts, incidents = self._attempts(), self._incidents()
        names = [*(incident.cluster for incident in incidents), *(attempt.cluster for attempt in attempts)]
        return Facts(
            from_s=self._range["from_s"],
            to_s=self._range["to_s"],
            read_at_s=self._now_s,
            cluster=next((name for name in reversed(names) if name), ""),
            attempts=attempts,
            incidents=incidents,
            actions=self._actions(),
            drains=_judged(self._drains(), DrainJudge(self._db)),
            strikes=self._strikes(),
            repairs=self._repairs(),
            pools=self._pools(),
            sizes=self._sizes(),
            doubts=(*self._doubts, *self._clock_doubts()),
        )

    def _note_version(self) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if missing := [name for name in _NEW_TABLES if name not in self._tables]:
            self._doubts.append(
                f"The journal has version {version}, of an older srobustd, and nothing about {', '.join(missing)}: "
                "these were not recorded then, and begin when the new srobustd is started."
            )
        elif version > len(MIGRATIONS):
            self._doubts.append(f"The journal has version {version}, of a newer srobustd: this program may miss some.")

    def _rows(self, table: str, where: str, make: Callable[[dict[str, Any]], _T]) -> tuple[_T, ...]:
        """Rows of a table, as `make` reads them; none if the table is not there."""
        if table not in self._tables:
            return ()
        found, bad = [], 0
        # Both texts are written in this file.
        for row in self._db.execute(f"SELECT * FROM {table} WHERE {where}", self._range):  # noqa: S608
            try:
                found.append(make(dict(row)))
            except _BAD_ROW:  # noqa: PERF203 (each row fails by itself)
                bad += 1
        if bad:
            self._doubts.append(f"The journal's {table} have {bad} rows that cannot be read; they are left out.")
        return tuple(found)

    def _incidents(self) -> tuple[ClosedIncident, ...]:
        keys = self._db.execute(f"SELECT key FROM incidents WHERE {_OVERLAPS} ORDER BY opened_at_s", self._range)  # noqa: S608
        found, bad = [], []
        for (key,) in keys.fetchall():
            try:
                row = self._journal.incident(key)
                if row is not None:
                    found.append(_incident(row))
            except _BAD_ROW:  # noqa: PERF203 (each row fails by itself)
                bad.append(str(key))
        if bad:
            self._doubts.append(f"{len(bad)} incidents of the journal cannot be read ({examples(bad)}); left out.")
        return _once(found)

    def _actions(self) -> tuple[TakenAction, ...]:
        mine = f"incident IN (SELECT key FROM incidents WHERE {_OVERLAPS})"  # noqa: S608 (a constant)
        alone = "called_at_s >= :from_s AND called_at_s < :to_s AND incident NOT IN (SELECT key FROM incidents)"
        return self._rows("actions", f"{mine} OR {alone} ORDER BY incident, seq", _action)

    def _attempts(self) -> tuple[SupervisedAttempt, ...]:
        where = "eligible_at_s < :to_s AND (end_at_s IS NULL OR end_at_s >= :from_s) ORDER BY start_at_s"
        return self._rows("attempts", where, _attempt)

    def _drains(self) -> tuple[NodeDrain, ...]:
        where = "at_s < :to_s AND (ended_at_s IS NULL OR ended_at_s >= :from_s) ORDER BY at_s"
        return self._rows("drains", where, lambda r: NodeDrain(r["node"], r["at_s"], r["reason"], r["ended_at_s"]))

    def _strikes(self) -> tuple[NodeStrike, ...]:
        def made(row: dict[str, Any]) -> NodeStrike:
            return NodeStrike(**{"user": "", **row})

        return self._rows("strikes", "at_s >= :from_s AND at_s < :to_s ORDER BY at_s", made)

    def _repairs(self) -> tuple[NodeRepair, ...]:
        def made(r: dict[str, Any]) -> NodeRepair:
            return NodeRepair(r["node"], r["remedy"], r["begun_at_s"], r["ended_at_s"], r["outcome"], r["why"])

        where = "begun_at_s < :to_s AND (ended_at_s IS NULL OR ended_at_s >= :from_s) ORDER BY number"
        return self._rows("repairs", where, made)

    def _pools(self) -> tuple[PoolSize, ...]:
        def made(r: dict[str, Any]) -> PoolSize:
            return PoolSize(r["at_s"], r["pool"], r["partition"], r["wanted"], expand(r["nodes"]))

        return self._rows("pool_sizes", _since_the_last("pool_sizes", "pool"), made)

    def _sizes(self) -> tuple[ClusterSize, ...]:
        def made(r: dict[str, Any]) -> ClusterSize:
            return ClusterSize(r["at_s"], r["gres"], r["nodes"], r["gpus"])

        return self._rows("cluster_sizes", _since_the_last("cluster_sizes", "gres"), made)

    def _clock_doubts(self) -> list[str]:
        query = "SELECT at_s, text FROM events WHERE what = 'clock.back' AND at_s >= :from_s AND at_s < :to_s"
        found = self._db.execute(query, self._range).fetchall()
        return [f"At {utc(row['at_s'])} the daemon noted: {row['text']}." for row in found[:5]]


def _since_the_last(table: str, name: str) -> str:
    """Rows of the time, and of each name the last one before it, which held when the time began."""
    before = f"SELECT {name}, max(at_s) FROM {table} WHERE at_s <= :from_s GROUP BY {name}"  # noqa: S608 (our own names)
    return f"at_s < :to_s AND (at_s >= :from_s OR ({name}, at_s) IN ({before})) ORDER BY at_s"


def _once(incidents: Sequence[ClosedIncident]) -> tuple[ClosedIncident, ...]:
    """Return the incidents, by time; a report that the same incident of the same attempt followed up is superseded.

    A job reports that it only alerts, and asks for a requeue later: two rows of one stop.
    """
    last = {(row.job_id, row.attempt, row.id): row.key for row in incidents}

    def followed_up(row: ClosedIncident) -> bool:
        is_report = row.kind == "report" and row.outcome in LEFT_ALONE
        return is_report and last[row.job_id, row.attempt, row.id] != row.key

    return tuple(replace(row, outcome="superseded") if followed_up(row) else row for row in incidents)


def _incident(row: IncidentRow) -> ClosedIncident:
    incident, recovery, verdict = row.incident, row.recovery, row.incident.verdict
    plan = incident.plan
    return ClosedIncident(
        key=row.key,
        id=incident.id,
        lineage=row.lineage,
        cluster=row.attempt.cluster,
        job=incident.job,
        job_id=row.job_id,
        user=row.user,
        attempt=row.attempt.key,
        restart=row.attempt.restart_count,
        kind=row.kind,
        mode=row.mode,
        state=row.state,
        outcome=row.outcome,
        reason=row.reason,
        opened_at_s=incident.opened_at_s,
        closed_at_s=row.closed_at_s,
        times={str(key): float(at_s) for key, at_s in incident.times.items()},
        conclusion=verdict.conclusion.value if verdict else "",
        confidence=row.confidence,
        suspects=tuple(suspect.node for suspect in verdict.suspects) if verdict else (),
        road=plan.road.value if plan else "",
        evict=recovery.bad if recovery else (plan.evict if plan else ()),
        standby=recovery.standby if recovery else (),
        verdict=verdict.reason if verdict else "",
        plan=plan.reason if plan else "",
        nodes=len(recovery.kept) + len(recovery.bad) if recovery else 0,
        folder=row.report,
    )


def _action(row: dict[str, Any]) -> TakenAction:
    json.loads(row["args"])  # a row whose arguments are damaged is damaged
    names = ("incident", "kind", "target", "reason", "planned", "calls", "called_at_s", "done_at_s", "error")
    values = {name: row[name] for name in names}
    return TakenAction(**{**values, "planned": bool(row["planned"])})


def _attempt(row: dict[str, Any]) -> SupervisedAttempt:
    known = attempt_of(row)
    for at_s in (known.times.eligible_at_s, known.times.start_at_s, known.times.seen_at_s):
        float(at_s)  # SQLite takes any text for a number
    return known


def _judged(drains: Iterable[NodeDrain], judge: DrainJudge) -> tuple[NodeDrain, ...]:
    """Return the drains, each with whether it was needless."""
    drains = tuple(drains)
    began = {(drain.node, drain.at_s): drain.at_s for drain in drains}
    for drain in drains:
        # The daemon writes a drain anew if it changes the reason: the drain began with its first row.
        if (drain.node, drain.ended_at_s) in began and drain.ended_at_s is not None:
            began[drain.node, drain.ended_at_s] = began[drain.node, drain.at_s]

    def reverted(drain: NodeDrain) -> bool:
        if drain.ended_at_s is None or (drain.node, drain.ended_at_s) in began:
            return False
        return bool(judge.why_reverted(drain.node, began[drain.node, drain.at_s], drain.ended_at_s))

    return tuple(NodeDrain(drain.node, drain.at_s, drain.reason, drain.ended_at_s, reverted(drain)) for drain in drains)
