"""The journal: every plan before its first action, every action before its call. One SQLite file, write-ahead logged.

It is the daemon's memory across a kill -9 and the site's audit log. Only the daemon writes it (and `srobust breaker
reset`, one key).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from slurm_robust.daemon.store.schema import JournalError, migrate
from slurm_robust.model import Action, Mode
from slurm_robust.policy.cluster.recovery_plan import Recovery

FILE_NAME = "journal.sqlite"
OPEN, RUNNING, CLOSED = "open", "running", "closed"


@dataclass(frozen=True)
class IncidentRow:
    """One incident as it stands in the journal.

    Attributes:
        key: Unique name: the attempt and the incident's own name, which is the job's choice.
        state: `open` (the way back is under way), `running` (the job runs, its first new step is awaited), `closed`.
        outcome: `running`, `resumed`, `ended`, `not_started`, `aborted`, `refused`, `observed`, `came_back`, `went_on`.
        recovery: The decided way back, None where there is none (a refusal).
        seat: True where this counts as a seat for the caps.
        abort: Outcome and reason of giving up, while tidying up; empty otherwise.
    """

    key: str
    id: str
    job_id: int
    job: str
    user: str
    cluster: str
    restart: int
    start_at_s: int
    kind: str
    mode: str
    opened_at_s: float
    lineage: str = ""
    state: str = OPEN
    outcome: str = ""
    reason: str = ""
    closed_at_s: float | None = None
    verdict: Mapping[str, Any] = field(default_factory=dict)
    recovery: Recovery | None = None
    times: Mapping[str, float] = field(default_factory=dict)
    report: str = ""
    seat: bool = False
    abort: str = ""


@dataclass(frozen=True)
class ActionRow:
    """One action of an incident: planned beforehand, or found necessary on the way (`planned` False)."""

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


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)


class Journal:
    """An open journal file."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.db = db
        self.path = path

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
        """All or nothing."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    # --- incidents

    def add_incident(self, row: IncidentRow) -> None:
        """Write an incident with all its planned actions, in one transaction; nothing where the key is there."""
        values = asdict(row)
        values["recovery"] = msgspec.json.encode(row.recovery).decode() if row.recovery else None
        values["verdict"], values["times"] = _dump(row.verdict), _dump(row.times)
        columns = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        with self.transaction():
            # Column names come from the dataclass above, never from outside.
            done = self.db.execute(f"INSERT OR IGNORE INTO incidents({columns}) VALUES({marks})", values)
            if done.rowcount and row.recovery:
                for seq, action in enumerate(row.recovery.actions):
                    self._insert_action(row.key, seq, action, planned=True)

    def incident(self, key: str) -> IncidentRow | None:
        """The incident of that key."""
        found = self.incidents("key = ?", (key,))
        return found[0] if found else None

    def incidents(self, where: str = "1", args: Sequence[Any] = (), limit: int = -1) -> list[IncidentRow]:
        """Incidents, newest first. `where` is a condition written in this program, values go into `args`."""
        query = f"SELECT * FROM incidents WHERE {where} ORDER BY opened_at_s DESC LIMIT ?"  # noqa: S608 (see above)
        return [self._incident(r) for r in self.db.execute(query, (*args, limit))]

    @staticmethod
    def _incident(r: sqlite3.Row) -> IncidentRow:
        values = dict(r)
        values["verdict"], values["times"] = json.loads(r["verdict"]), json.loads(r["times"])
        values["recovery"] = msgspec.json.decode(r["recovery"], type=Recovery) if r["recovery"] else None
        values["seat"] = bool(r["seat"])
        return IncidentRow(**values)

    def recoveries(self, job_id: int, user: str) -> list[tuple[IncidentRow, Recovery]]:
        """A job's recoveries that were carried out, or are, newest first."""
        rows = self.incidents("job_id = ? AND user = ? AND mode = ?", (job_id, user, Mode.ACT.value))
        return [(row, row.recovery) for row in rows if row.recovery is not None]

    def evicted(self, job_id: int, user: str) -> frozenset[str]:
        """Nodes that recoveries of this job left out so far."""
        return frozenset(n for _, r in self.recoveries(job_id, user) for n in r.bad)

    def update_incident(self, key: str, **changes: Any) -> None:
        """Change columns of an incident; `times` is merged, all else replaced."""
        with self.transaction():
            if "times" in changes:
                old = self.db.execute("SELECT times FROM incidents WHERE key = ?", (key,)).fetchone()
                changes["times"] = _dump({**(json.loads(old["times"]) if old else {}), **changes["times"]})
            names = ", ".join(f"{name} = :{name}" for name in changes)
            self.db.execute(f"UPDATE incidents SET {names} WHERE key = :key", {**changes, "key": key})  # noqa: S608

    def seats_since(self, at_s: float, *, user: str = "", job_id: int = 0) -> int:
        """How many seats were given since then, to this user or this job."""
        query = "SELECT count(*) FROM incidents WHERE seat AND opened_at_s >= ? AND (user = ? OR job_id = ?)"
        return int(self.db.execute(query, (at_s, user, job_id)).fetchone()[0])

    def fruitless_seats(self, at_s: float, job_id: int, step: int) -> int:
        """How many seats this job asked for and got since then, one after the other, and came no further after each.

        By the steps that it told with its claims, the last of which is `step`: a lineage is the job's own choice.
        """
        count = 0
        for row in self.incidents("seat AND kind = 'claim' AND job_id = ? AND opened_at_s >= ?", (job_id, at_s)):
            told = row.verdict.get("step", -1)
            if told < step:
                break
            count, step = count + 1, told
        return count

    # --- actions

    def _insert_action(self, key: str, seq: int, action: Action, *, planned: bool) -> None:
        values = (key, seq, action.kind.value, action.target, action.reason, _dump(dict(action.args)), planned)
        self.db.execute(
            "INSERT INTO actions(incident, seq, kind, target, reason, args, planned) VALUES(?,?,?,?,?,?,?)", values
        )

    def note_call(self, key: str, action: Action, now_s: float) -> None:
        """Write down that the action is about to be called; an action that was not planned gets a row of its own."""
        with self.transaction():
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
        """Write down that Slurm shows the action done, or what it said instead."""
        self.db.execute(
            "UPDATE actions SET done_at_s = ?, error = ? WHERE incident = ? AND kind = ? AND target = ?",
            (None if error else now_s, error, key, action.kind.value, action.target),
        )

    def actions(self, key: str) -> list[ActionRow]:
        """The incident's actions in their order."""
        rows = self.db.execute("SELECT * FROM actions WHERE incident = ? ORDER BY seq", (key,))
        return [
            ActionRow(
                r["seq"],
                r["kind"],
                r["target"],
                r["reason"],
                json.loads(r["args"]),
                bool(r["planned"]),
                r["calls"],
                r["called_at_s"],
                r["done_at_s"],
                r["error"],
            )
            for r in rows
        ]

    # --- single values, events, retention

    def get(self, key: str, default: str = "") -> str:
        """A single value."""
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
        """Close incidents whose job runs again, but never told of a new step (it is not supervised, say)."""
        query = "UPDATE incidents SET state = ?, closed_at_s = ? WHERE state = ? AND opened_at_s < ?"
        self.db.execute(query, (CLOSED, now_s, RUNNING, opened_before_s))

    def forget_before(self, at_s: float) -> None:
        """Drop what is older than the site wants to keep."""
        with self.transaction():
            old = "SELECT key FROM incidents WHERE closed_at_s < ?"
            self.db.execute(f"DELETE FROM actions WHERE incident IN ({old})", (at_s,))  # noqa: S608 (constant above)
            self.db.execute("DELETE FROM incidents WHERE closed_at_s < ?", (at_s,))
            # Of no incident: answers that refused a flood, drains done again, holds ended.
            alone = "called_at_s < ? AND incident NOT IN (SELECT key FROM incidents)"
            self.db.execute(f"DELETE FROM actions WHERE {alone}", (at_s,))  # noqa: S608 (constant above)
            self.db.execute("DELETE FROM events WHERE at_s < ?", (at_s,))
            self.db.execute("DELETE FROM strikes WHERE at_s < ?", (at_s,))
            self.db.execute("DELETE FROM drains WHERE ended_at_s < ?", (at_s,))
