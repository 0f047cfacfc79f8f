"""Keeps in the journal the tests of two nodes together."""

from __future__ import annotations

import sqlite3
from dataclasses import fields, replace

from slurm_robust.daemon.store.journal import Journal
from slurm_robust.policy.cluster.tested_pairs import PairReport, PairTest

_COLUMNS = ", ".join(f.name for f in fields(PairTest))

DROPPED = "dropped"


class PairLedger:
    """Reads and writes the table of these tests."""

    def __init__(self, journal: Journal) -> None:
        self.db: sqlite3.Connection = journal.db

    def _tests(self, where: str, *args: object) -> list[PairTest]:
        query = f"SELECT {_COLUMNS} FROM pair_tests WHERE {where} ORDER BY number"  # noqa: S608 (our own names)
        return [PairTest(**dict(r)) for r in self.db.execute(query, args)]

    def open(self) -> list[PairTest]:
        """Return tests under way, and tests whose reservation is still to be deleted."""
        return self._tests("ended_at_s IS NULL")

    def ended(self, since_s: float) -> list[PairTest]:
        """Tests that have ended since then and count, in their order."""
        return self._tests("ended_at_s >= ? AND result != ?", since_s, DROPPED)

    def begin(self, test: PairTest) -> PairTest:
        """Write a new test down, before anything is done; its `number` is given here."""
        values = {**vars(test), "number": None}
        marks = ", ".join(f":{name}" for name in values)
        done = self.db.execute(f"INSERT INTO pair_tests({_COLUMNS}) VALUES({marks})", values)
        return replace(test, number=int(done.lastrowid or 0))

    def submitted(self, test: PairTest, job_id: int, at_s: float) -> None:
        """Note its job, and when it was submitted."""
        self.db.execute(
            "UPDATE pair_tests SET job_id = ?, begun_at_s = ? WHERE number = ?", (job_id, at_s, test.number)
        )

    def told(self, test: PairTest, report: PairReport) -> None:
        """Note the result of the test."""
        values = (report.result.value, ",".join(report.failed), report.reason, test.number)
        self.db.execute("UPDATE pair_tests SET result = ?, failed = ?, reason = ? WHERE number = ?", values)

    def end(self, test: PairTest, at_s: float) -> None:
        """Note that the test is tidied up."""
        self.db.execute("UPDATE pair_tests SET ended_at_s = ? WHERE number = ?", (at_s, test.number))

    def dropped(self, test: PairTest) -> None:
        """Drop a test that could not be begun, or is not needed: it has no result, and does not count."""
        self.db.execute("UPDATE pair_tests SET result = ? WHERE number = ?", (DROPPED, test.number))

    def restart_timers(self, now_s: float) -> None:
        """Limit beginnings and ends to now, since the clock was set back."""
        for name in ("begun_at_s", "ended_at_s"):
            self.db.execute(f"UPDATE pair_tests SET {name} = min({name}, ?) WHERE {name} > ?", (now_s, now_s))  # noqa: S608
