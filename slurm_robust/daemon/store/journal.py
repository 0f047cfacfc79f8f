"""Writes the journal, one SQLite file: every plan before its first action, every action before its call.

It is the daemon's memory across a kill -9, and the site's audit log. Only the daemon writes it, and `srobust breaker
reset`, which writes one key. The file uses a write-ahead log.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slurm_robust.core.model import Action, Attempt, Conclusion, Incident, Mode, Plan, Road, Suspect, Verdict
from slurm_robust.daemon.store.schema import JournalError, migrate
from slurm_robust.policy.cluster.recovery_plan import Recovery
from slurm_robust.policy.cluster.recovery_step import GiveUp

FILE_NAME = "journal.sqlite"
OPEN, RUNNING, CLOSED = "open", "running", "closed"
T = TypeVar("T")


def _dump(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


@dataclass(frozen=True)
class IncidentRow:
    """One incident in the journal.

    Attributes:
        key: Unique name: the attempt and the incident's id, which the job chooses.
        incident: The incident; `incident.outcome` is the sentence that says how it ended.
        attempt: The run of the job in which it happened.
        job_id: The job's raw id.
        state: `open` (the recovery is under way), `running` (the job runs, its first new step is awaited), `closed`.
        outcome: `running`, `resumed`, `ended`, `not_started`, `aborted`, `refused`, `observed`, `came_back`, `went_on`,
            `superseded`, `stopped`, `alerted`; empty while it is open.
        recovery: The decided way back; None without one (a refusal, a report).
        confidence: The confidence of the verdict, 0 to 1.
        step: The highest step that the job had reported with its claim, -1 if unknown.
        claimed_at_s: When the claim was written, 0 if no claim asked.
        seat: Whether this counts as a seat for the caps.
        abort: Why the recovery is given up, while it tidies up; None otherwise.
    """

    key: str
    incident: Incident
    attempt: Attempt
    job_id: int
    user: str
    kind: str
    mode: str
    lineage: str = ""
    state: str = OPEN
    outcome: str = ""
    closed_at_s: float | None = None
    recovery: Recovery | None = None
    confidence: float = 0.0
    step: int = -1
    claimed_at_s: float = 0.0
    report: str = ""
    seat: bool = False
    abort: GiveUp | None = None

    @property
    def reason(self) -> str:
        """The sentence that says how the incident ended."""
        return self.incident.outcome


def _columns(row: IncidentRow) -> dict[str, Any]:
    """Return the row in the form that SQLite takes."""
    incident, attempt = row.incident, row.attempt
    own = {f.name: getattr(row, f.name) for f in fields(row) if f.name not in ("incident", "attempt")}
    return own | {
        "id": incident.id,
        "job": incident.job,
        "cluster": attempt.cluster,
        "restart": attempt.restart_count,
        "start_at_s": attempt.start_at_s,
        "opened_at_s": incident.opened_at_s,
        "reason": incident.outcome,
        "verdict": _dump(incident.verdict),
        "plan": _dump(incident.plan),
        "times": _dump(incident.times),
        "recovery": _dump(row.recovery) if row.recovery else None,
        "abort": _dump(row.abort) if row.abort else "",
    }


def _row(columns: sqlite3.Row) -> IncidentRow:
    """Return the row that this version or an older one wrote."""
    values = dict(columns)
    recovery = msgspec.json.decode(values["recovery"], type=Recovery) if values["recovery"] else None
    attempt = Attempt(*(values.pop(name) for name in ("cluster", "job", "restart", "start_at_s")))
    verdict, plan = values.pop("verdict"), values.pop("plan", None)
    raw = json.loads(verdict)
    if raw is None or "reason" in raw:
        typed = msgspec.json.decode(verdict, type=Verdict | None)
        decided = msgspec.json.decode(plan, type=Plan | None) if plan else None
    else:
        typed, decided = _old_verdict(raw), _old_plan(raw)
        values |= {"confidence": raw.get("confidence", 0.0), "step": raw.get("step", -1)}
        values["claimed_at_s"] = float(raw.get("at_s", 0.0))
    incident = Incident(
        id=values.pop("id"),
        job=attempt.job,
        attempt=attempt.key,
        opened_at_s=values.pop("opened_at_s"),
        times=json.loads(values.pop("times")),
        verdict=typed,
        plan=decided or (recovery.plan if recovery else None),
        outcome=values.pop("reason"),
    )
    values.pop("counted", None)  # the totals' own mark
    values |= {"recovery": recovery, "seat": bool(values["seat"]), "abort": _abort(values["abort"])}
    return IncidentRow(incident=incident, attempt=attempt, **values)


def _old_verdict(raw: dict[str, Any]) -> Verdict | None:
    """Return a verdict of journal version 2 or older."""
    if not raw:
        return None
    why, confidence = raw.get("why", ""), raw.get("confidence", 0.0)
    return Verdict(
        Conclusion.of(raw.get("conclusion", "")),
        why,
        tuple(Suspect(n, (), confidence, why) for n in raw.get("suspects", ())),
    )


def _old_plan(raw: dict[str, Any]) -> Plan | None:
    """Return the plan of a report of journal version 2 or older, which stood within its verdict."""
    return Plan(Road(raw["road"]), raw["why"], tuple(raw["evict"])) if "road" in raw else None


def _abort(text: str) -> GiveUp | None:
    """Return why a recovery is given up, from JSON, or `outcome|reason` up to journal version 2."""
    if not text:
        return None
    return msgspec.json.decode(text, type=GiveUp) if text.startswith("{") else GiveUp(*text.split("|", maxsplit=1))


@dataclass(frozen=True)
class ActionRow:
    """One action of an incident: planned beforehand, or found necessary later (`planned` False)."""

    seq: int
    kind: str
    target: str
    reason: str
    args: Mapping[str, Any]
    planned: bool
    calls: int
    called_at_s: float | None
    done_at_s: float | None
    error: str


class Journal:
    """An open journal file."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.db = db
        self.path = path
        self._remembered: dict[Hashable, list[Any]] = {}
        self._remembered_at = (-1, -1)

    @classmethod
    def open(cls, state_dir: str | Path, *, read_only: bool = False) -> Journal:
        """Open (and create) the journal in `state_dir`.

        Raises:
            JournalError: it cannot be opened, or a newer version wrote it.
        """
        path = Path(state_dir) / FILE_NAME
        try:
            if read_only:
                db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)
                db.execute("SELECT count(*) FROM kv")
            else:
                # The folder is readable for all (`state.json` stands there), the journal for the daemon's user only.
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
                path.touch(mode=0o600)
                db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
                db.execute("PRAGMA journal_mode = WAL")
                # A plan must be on disk before its first action, also when the machine loses its power.
                db.execute("PRAGMA synchronous = FULL")
                migrate(db, str(path))
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"{path}: the journal cannot be opened: {error}; see daemon.state_dir") from error
        db.row_factory = sqlite3.Row
        return cls(db, path)

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all statements of the block, or after an error no statement."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    # --- incidents

    def add_incident(self, row: IncidentRow) -> None:
        """Write an incident with all its planned actions, in one transaction; nothing if the key exists."""
        values = _columns(row)
        columns = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        with self.transaction():
            # Column names come from the dataclass above, never from outside.
            done = self.db.execute(f"INSERT OR IGNORE INTO incidents({columns}) VALUES({marks})", values)
            if done.rowcount and row.recovery:
                for seq, action in enumerate(row.recovery.actions):
                    self._insert_action(row.key, seq, action, planned=True)

    def incident(self, key: str) -> IncidentRow | None:
        """Return the incident of that key."""
        found = self.incidents("key = ?", (key,))
        return found[0] if found else None

    def incidents(self, where: str = "1", args: Sequence[Any] = (), limit: int = -1) -> list[IncidentRow]:
        """Incidents, newest first. `where` is a condition written in this program, values go into `args`."""
        query = f"SELECT * FROM incidents WHERE {where} ORDER BY opened_at_s DESC LIMIT ?"  # noqa: S608 (see above)
        return [_row(columns) for columns in self.db.execute(query, (*args, limit))]

    def unfinished(self) -> list[IncidentRow]:
        """Incidents that are not closed, newest first; by an index, however long the journal is."""
        # Written out: a partial index does not serve a condition on a parameter.
        return self.incidents("state != 'closed'")

    def recoveries(self, job_id: int, user: str) -> list[tuple[IncidentRow, Recovery]]:
        """Return a job's recoveries that were carried out, or are, newest first."""
        rows = self.incidents("job_id = ? AND user = ? AND mode = ?", (job_id, user, Mode.ACT.value))
        return [(row, row.recovery) for row in rows if row.recovery is not None]

    def evicted(self, job_id: int, user: str) -> frozenset[str]:
        """Nodes that recoveries of this job have excluded so far."""
        return frozenset(n for _, r in self.recoveries(job_id, user) for n in r.bad)

    def update_incident(self, key: str, **changes: Any) -> None:
        """Change columns of an incident; `times` is merged, all else replaced."""
        with self.transaction():
            if "times" in changes:
                old = self.db.execute("SELECT times FROM incidents WHERE key = ?", (key,)).fetchone()
                changes["times"] = _dump({**(json.loads(old["times"]) if old else {}), **changes["times"]})
            names = ", ".join(f"{name} = :{name}" for name in changes)
            self.db.execute(f"UPDATE incidents SET {names} WHERE key = :key", {**changes, "key": key})  # noqa: S608

    def close_incident(self, key: str, outcome: str, reason: str, now_s: float, **changes: Any) -> None:
        """Close an incident with its outcome; further columns may change with it."""
        changes |= {"state": CLOSED, "outcome": outcome, "reason": reason, "closed_at_s": now_s}
        self.update_incident(key, **changes)

    def reopen(self, row: IncidentRow) -> None:
        """Write down that an incident that was closed is open again, with the recovery that it has now."""
        names = ("state", "outcome", "reason", "closed_at_s", "recovery", "abort")
        columns = _columns(row) | {"reason": ""}
        self.update_incident(row.key, **{name: columns[name] for name in names})

    def give_up(self, key: str, why: GiveUp) -> None:
        """Write down that a recovery is given up; it still has to tidy up."""
        self.update_incident(key, abort=_dump(why))

    def seats_since(self, at_s: float, *, user: str = "", job_id: int = 0, fruitless: bool = False) -> int:
        """Return how many seats this user or job got since then; `fruitless`: only seats that brought no new step."""
        query = "SELECT count(*) FROM incidents WHERE seat AND opened_at_s >= ? AND (user = ? OR job_id = ?)"
        query += " AND state = 'closed' AND outcome != 'resumed'" if fruitless else ""
        return int(self.db.execute(query, (at_s, user, job_id)).fetchone()[0])

    def fruitless_seats(self, at_s: float, job_id: int, step: int) -> int:
        """Return how many seats in a row this job asked for and got since then, all without a new step.

        The steps that the job reported with its claims count, the last of which is `step`; the lineage does not count,
        since the job chooses it.
        """
        count = 0
        for row in self.incidents("seat AND kind = 'claim' AND job_id = ? AND opened_at_s >= ?", (job_id, at_s)):
            if row.step < step:
                break
            count, step = count + 1, row.step
        return count

    # --- actions

    def _insert_action(self, key: str, seq: int, action: Action, *, planned: bool) -> None:
        values = (key, seq, action.kind.value, action.target, action.reason, _dump(dict(action.args)), planned)
        self.db.execute(
            "INSERT INTO actions(incident, seq, kind, target, reason, args, planned) VALUES(?,?,?,?,?,?,?)", values
        )

    def note_call(self, key: str, action: Action, now_s: float, *, standing: bool = False) -> None:
        """Write down that the action is about to be called; an action that was not planned gets a row of its own.

        A `standing` action is repeated for ever: it replaces the row that the key has.
        """
        with self.transaction():
            if standing:
                self.db.execute("DELETE FROM actions WHERE incident = ?", (key,))
            where = (key, action.kind.value, action.target)
            query = "SELECT seq FROM actions WHERE incident = ? AND kind = ? AND target = ?"
            row = self.db.execute(query, where).fetchone()
            if row is None:
                query = "SELECT coalesce(max(seq), -1) + 1 AS seq FROM actions WHERE incident = ?"
                row = self.db.execute(query, (key,)).fetchone()
                self._insert_action(key, row["seq"], action, planned=False)
            self.db.execute(
                "UPDATE actions SET calls = calls + 1, called_at_s = coalesce(called_at_s, ?), done_at_s = NULL "
                "WHERE incident = ? AND seq = ?",
                (now_s, key, row["seq"]),
            )

    def note_result(self, key: str, action: Action, now_s: float, error: str = "") -> None:
        """Write down that Slurm shows the action done, or the error that it gave."""
        self.db.execute(
            "UPDATE actions SET done_at_s = ?, error = ? WHERE incident = ? AND kind = ? AND target = ?",
            (None if error else now_s, error, key, action.kind.value, action.target),
        )

    def actions(self, key: str) -> list[ActionRow]:
        """Return the incident's actions in their order."""
        return self.remembered(("actions", key), lambda: self._actions(key))

    def _actions(self, key: str) -> list[ActionRow]:
        names = ", ".join(f.name for f in fields(ActionRow))
        rows = self.db.execute(f"SELECT {names} FROM actions WHERE incident = ? ORDER BY seq", (key,))  # noqa: S608
        return [ActionRow(**{**dict(r), "args": json.loads(r["args"]), "planned": bool(r["planned"])}) for r in rows]

    # --- single values, events, retention

    @property
    def revision(self) -> tuple[int, int]:
        """A value that differs after each change of the journal, by this process or another one."""
        return self.db.total_changes, int(self.db.execute("PRAGMA data_version").fetchone()[0])

    def remembered(self, what: Hashable, read: Callable[[], list[T]]) -> list[T]:
        """Return the rows of `read`, which is called again only after a change of the journal."""
        if self.db.in_transaction:
            return read()  # a rollback leaves no trace in the revision
        if self._remembered_at != (revision := self.revision):
            self._remembered, self._remembered_at = {}, revision
        if what not in self._remembered:
            self._remembered[what] = read()
        return list(self._remembered[what])

    def get(self, key: str, default: str = "") -> str:
        """Return a single value by its key."""
        row = self.db.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()
        return str(row["value"]) if row else default

    def put(self, key: str, value: str) -> None:
        """Set a single value."""
        self.db.execute(
            "INSERT INTO kv VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value", (key, value)
        )

    def event(self, at_s: float, level: str, what: str, text: str) -> None:
        """Add a line to the audit log."""
        self.db.execute("INSERT INTO events VALUES(?, ?, ?, ?)", (at_s, level, what, text[:2000]))

    def close_running(self, opened_before_s: float, now_s: float) -> None:
        """Close incidents whose job runs again but never reported a new step (it is not supervised, for example)."""
        query = "UPDATE incidents SET state = ?, closed_at_s = ? WHERE state = ? AND opened_at_s < ?"
        self.db.execute(query, (CLOSED, now_s, RUNNING, opened_before_s))

    def forget_before(self, at_s: float) -> None:
        """Delete rows that are older than the site keeps."""
        with self.transaction():
            old = "SELECT key FROM incidents WHERE closed_at_s < ?"
            self.db.execute(f"DELETE FROM actions WHERE incident IN ({old})", (at_s,))  # noqa: S608 (constant above)
            self.db.execute("DELETE FROM incidents WHERE closed_at_s < ?", (at_s,))
            # Actions of no incident: answers that refused a flood, drains done again, releases, orphans.
            alone = "called_at_s < ? AND incident NOT IN (SELECT key FROM incidents)"
            self.db.execute(f"DELETE FROM actions WHERE {alone}", (at_s,))  # noqa: S608 (constant above)
            self.db.execute("DELETE FROM events WHERE at_s < ?", (at_s,))
            self.db.execute("DELETE FROM strikes WHERE at_s < ?", (at_s,))
            self.db.execute("DELETE FROM drains WHERE ended_at_s < ?", (at_s,))
            self.db.execute("DELETE FROM repairs WHERE ended_at_s < ?", (at_s,))
            self.db.execute("DELETE FROM pair_tests WHERE ended_at_s < ?", (at_s,))
            self.db.execute("DELETE FROM attempts WHERE end_at_s < ?", (at_s,))
            for table, of in (("pool_sizes", "pool"), ("cluster_sizes", "gres")):
                # The last row of before still says what was there then. Looked up once: a row each is quadratic.
                newest = f"SELECT {of}, max(at_s) FROM {table} WHERE at_s < :at_s GROUP BY {of}"  # noqa: S608
                query = f"DELETE FROM {table} WHERE at_s < :at_s AND ({of}, at_s) NOT IN ({newest})"  # noqa: S608
                self.db.execute(query, {"at_s": at_s})
