"""Keeps in the journal the tries to repair each node, and what a person was told."""

from __future__ import annotations

import sqlite3
from dataclasses import fields, replace

from slurm_robust.daemon.store.journal import Journal
from slurm_robust.marks.remedy import Remedy
from slurm_robust.policy.cluster.repair import RepairTry

_COLUMNS = ", ".join(f.name for f in fields(RepairTry))


class RepairLedger:
    """Reads and writes the table of repairs."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.db: sqlite3.Connection = journal.db

    def _tries(self, where: str, *args: object) -> list[RepairTry]:
        query = f"SELECT {_COLUMNS} FROM repairs WHERE {where} ORDER BY number"  # noqa: S608 (our own names)
        return [RepairTry(**{**dict(r), "remedy": Remedy(r["remedy"])}) for r in self.db.execute(query, args)]

    def open(self) -> list[RepairTry]:
        """Tries under way."""
        return self._tries("ended_at_s IS NULL")

    def of(self, node: str) -> list[RepairTry]:
        """Return all tries on a node, oldest first."""
        return self._tries("node = ?", node)

    def under_way(self, node: str) -> RepairTry | None:
        """Return the try under way on this node."""
        return next(iter(self._tries("ended_at_s IS NULL AND node = ?", node)), None)

    def begin(self, t: RepairTry) -> RepairTry:
        """Write a new try down; its `number` is given here."""
        values = {**vars(t), "number": None, "remedy": t.remedy.value}
        marks = ", ".join(f":{name}" for name in values)
        done = self.db.execute(f"INSERT INTO repairs({_COLUMNS}) VALUES({marks})", values)
        return replace(t, number=int(done.lastrowid or 0))

    def note(self, t: RepairTry, **values: float | str) -> None:
        """Change columns of a try."""
        columns = ", ".join(f"{name} = :{name}" for name in values)
        query = f"UPDATE repairs SET {columns} WHERE number = :number"  # noqa: S608 (our own names)
        self.db.execute(query, {**values, "number": t.number})

    def restart_timers(self, now_s: float) -> None:
        """Limit beginnings to now, since the clock was set back."""
        for name in ("begun_at_s", "acted_at_s", "asked_at_s", "done_at_s", "checked_at_s"):
            self.db.execute(f"UPDATE repairs SET {name} = min({name}, ?) WHERE {name} > ?", (now_s, now_s))  # noqa: S608

    def announced(self, node: str, text: str) -> bool:
        """Return whether this was said of the node already, and nothing else since; it is written down as said."""
        key = f"repair_said.{node}"
        if self.journal.get(key) == text:
            return True
        self.journal.put(key, text)
        return False
