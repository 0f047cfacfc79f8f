"""Counts the journal's incidents, drains, claims, checks, events, and the seconds of each stage.

A row is marked as counted in the transaction that adds it to the sums: each row is counted once, even if the daemon is
killed in between.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from typing import Any

import msgspec

from slurm_robust.core.model import Road
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.counted import SEPARATOR, Counted
from slurm_robust.daemon.store.drain_history import DrainJudge
from slurm_robust.daemon.store.journal import IncidentRow
from slurm_robust.policy.cluster.recovery_plan import CLAIM, OWNER, REPORT
from slurm_robust.policy.cluster.stage_times import back_s, stage_seconds
from slurm_robust.policy.cluster.tested_pairs import PairResult
from slurm_robust.slurm.client import Node

KEY = "totals"
EVERY_S = 1.0
ROWS = 200
"""Counted at once, at most: a long journal of an older version is counted in pieces."""
CLAIMED_WITHIN_S = 3600.0
"""A report that only alerts is counted after this time, if its job has not claimed the same incident by then."""
MAX_EVENTS = 200
"""Kinds of events that are counted; further ones are counted together as `other`."""
CHECKS = {
    "standby.checked": ("standby", "passed"),
    "standby.failed": ("standby", "failed"),
    "standby.unknown": ("standby", "unknown"),
    "quarantine.passed": ("recheck", "passed"),
    "recheck.unknown": ("recheck", "unknown"),
    "quarantine.unknown": ("recheck", "unknown"),
}
"""Event → which check ended, and how."""


class Totals:
    """Counts new rows of the journal, and shows the sums."""

    def __init__(self, context: DaemonContext) -> None:
        self.context = context
        self._next_at_s = 0.0
        self._revision = (-1, -1)
        text = context.journal.get(KEY)
        try:
            self._kept = msgspec.json.decode(text, type=Counted) if text else Counted()
        except msgspec.MsgspecError:
            self._kept = Counted()

    def tick(self) -> None:
        """Count new rows, once a second at most; on a full disk, rows are counted later."""
        now_s, journal = self.context.now_s(), self.context.journal
        if now_s < self._next_at_s <= now_s + EVERY_S:
            return
        self._next_at_s = now_s + EVERY_S
        if journal.revision == self._revision:
            return
        kept = msgspec.json.decode(msgspec.json.encode(self._kept), type=Counted)
        kept.since_s = kept.since_s or now_s
        try:
            with journal.transaction():
                whole = all((self._incidents(kept), self._drains(kept), self._events(kept)))
                if kept != self._kept:
                    journal.put(KEY, msgspec.json.encode(kept).decode())
        except sqlite3.OperationalError:
            return
        self._kept, self._revision = kept, journal.revision if whole else (-1, -1)

    def shown(self) -> dict[str, Any]:
        """Return for the snapshot: numbers by name and labels."""
        return {
            "since_s": self._kept.since_s,
            "counters": self._kept.counters,
            "times": {
                name: {"bounds_s": found.bounds_s, "counts": found.counts, "sum_s": found.sum_s}
                for name, found in self._kept.times.items()
            },
        }

    # --- incidents

    def _incidents(self, kept: Counted) -> bool:
        journal, full = self.context.journal, False
        # `counted`: 1 where its beginning is in the totals, 2 where its end is, too. Written out for the partial index.
        # What a job only alerts on may be claimed, or restarted in place, later: then it is that, and not another one.
        waits = "(kind = 'report' AND key LIKE '%.alert_only' AND opened_at_s > ?)"
        for where, count, mark in (
            (f"counted < 2 AND counted = 0 AND NOT {waits}", self._opened, 1),
            (f"counted < 2 AND counted = 1 AND state = 'closed' AND NOT {waits}", self._closed, 2),
        ):
            query = f"SELECT key FROM incidents WHERE {where} ORDER BY opened_at_s LIMIT {ROWS}"  # noqa: S608 (see above)
            rows = journal.db.execute(query, (self.context.now_s() - CLAIMED_WITHIN_S,))
            keys = [str(found["key"]) for found in rows]
            full |= len(keys) == ROWS
            for key in keys:
                # One that is damaged is passed over, or nothing would ever be counted again.
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    row = journal.incident(key)
                    if row is not None and not self._claimed(row):
                        count(kept, row)
                journal.db.execute("UPDATE incidents SET counted = ? WHERE key = ?", (mark, key))
        return not full

    def _claimed(self, row: IncidentRow) -> bool:
        """Return whether this row says that a job only alerts, and another row has a later action on that incident."""
        incident = row.key.removesuffix(f".{Road.ALERT_ONLY.value}")
        if row.kind != REPORT or incident == row.key:
            return False
        later = "job_id = ? AND key != ? AND (key = ? OR key LIKE ? || '.%')"
        return bool(self.context.journal.incidents(later, (row.job_id, row.key, incident, incident), 1))

    def _opened(self, kept: Counted, row: IncidentRow) -> None:
        kept.count("incidents_opened", row.kind)
        if row.kind in (CLAIM, OWNER):
            kept.count("claims", "refused" if row.outcome == "refused" else "accepted")
        recovery = row.recovery
        if row.seat and recovery is not None:
            missing = max(len(recovery.bad), len(recovery.standby))
            for result, number in (("hit", len(recovery.standby)), ("miss", missing - len(recovery.standby))):
                kept.count("standby_replacements", result, by=number)
        kept.gpus[row.key] = self._gpus(row)

    def _closed(self, kept: Counted, row: IncidentRow) -> None:
        plan = row.incident.plan
        road = plan.road.value if plan else "none"
        gpus, took_s = kept.gpus.pop(row.key, 0), back_s(row.incident.times)
        kept.count("incidents", row.kind, road, row.outcome or "none")
        for stage, seconds in stage_seconds(row.incident.times).items():
            kept.time("stage", stage, road, seconds=seconds)
        if took_s is not None and row.outcome == "resumed":
            kept.time("recovery", road, seconds=took_s)
            kept.count("gpu_seconds_lost", road, by=round(took_s * gpus, 3))

    def _gpus(self, row: IncidentRow) -> int:
        readings = self.context.readings
        job = readings.jobs.get(row.job_id)
        # Requeued already: its nodes are those of its plan.
        names = (job.nodes if job else ()) or (row.recovery.seat_nodes if row.recovery else ())
        return sum(gpus_of(readings.nodes[name]) for name in names if name in readings.nodes)

    # --- drains

    def _drains(self, kept: Counted) -> bool:
        db = self.context.journal.db
        newest = db.execute("SELECT coalesce(max(rowid), 0) AS newest FROM drains").fetchone()["newest"]
        # The newest row was deleted, and its number will be given again.
        kept.drains_row = min(kept.drains_row, newest)
        query = "SELECT rowid, node, at_s FROM drains WHERE rowid > ? ORDER BY rowid LIMIT ?"
        rows = db.execute(query, (kept.drains_row, ROWS)).fetchall()
        for row in rows:
            kept.drains_row = row["rowid"]
            if row["at_s"] <= 0:  # it was out of service before the first daemon
                continue
            if self._before(row) is None:
                kept.count("drains")
            kept.out[row["rowid"]] = (row["node"], row["at_s"])
        self._ended(kept)
        return len(rows) < ROWS

    def _before(self, row: sqlite3.Row) -> sqlite3.Row | None:
        """Return the drain to which this one only gave another reason."""
        query = "SELECT rowid, at_s FROM drains WHERE node = ? AND ended_at_s = ? AND rowid < ?"
        db = self.context.journal.db
        found: sqlite3.Row | None = db.execute(query, (row["node"], row["at_s"], row["rowid"])).fetchone()
        return found

    def _ended(self, kept: Counted) -> None:
        db = self.context.journal.db
        judge: DrainJudge | None = None
        still_out = {row["rowid"] for row in db.execute("SELECT rowid FROM drains WHERE ended_at_s IS NULL")}
        for number in sorted(set(kept.out) - still_out):
            node, at_s = kept.out.pop(number)
            row = db.execute("SELECT ended_at_s FROM drains WHERE rowid = ?", (number,)).fetchone()
            if row is None:  # it was not counted before it was forgotten
                continue
            again = "SELECT rowid FROM drains WHERE node = ? AND at_s = ? AND rowid > ?"
            follower = db.execute(again, (node, row["ended_at_s"], number)).fetchone()
            if follower is not None:
                # The same drain with another reason: it began when the first one did.
                if follower["rowid"] in kept.out:
                    kept.out[follower["rowid"]] = (node, at_s)
                continue
            kept.count("drains_ended")
            judge = judge or DrainJudge(db)
            if judge.why_reverted(node, at_s, row["ended_at_s"]):
                kept.count("drains_reverted")

    # --- events

    def _events(self, kept: Counted) -> bool:
        db = self.context.journal.db
        newest = db.execute("SELECT coalesce(max(rowid), 0) AS newest FROM events").fetchone()["newest"]
        kept.events_row = min(kept.events_row, newest)
        query = "SELECT rowid, what, text FROM events WHERE rowid > ? ORDER BY rowid LIMIT ?"
        rows = db.execute(query, (kept.events_row, 10 * ROWS)).fetchall()
        known = {key.partition(SEPARATOR)[2] for key in kept.counters if key.startswith("events" + SEPARATOR)}
        for row in rows:
            kept.events_row, what = row["rowid"], row["what"]
            known |= {what} if len(known) < MAX_EVENTS else set()
            kept.count("events", what if what in known else "other")
            if check := _check(what, row["text"]):
                kept.count("checks", *check)
        return len(rows) < 10 * ROWS


def _check(what: str, text: str) -> tuple[str, str] | None:
    """Return which check ended with this event, and how; None if no check did."""
    if what == "quarantine.left" and ": drained: " in text:
        return "recheck", "failed"
    if what == "pair_test.ended":
        came_to = text.partition(": ")[2]
        # The longest first: `failed together` begins as `failed` does.
        words = sorted(PairResult, key=lambda result: -len(result.value))
        return next((("pair", result.name.lower()) for result in words if came_to.startswith(result.value)), None)
    return CHECKS.get(what)


def gpus_of(node: Node) -> int:
    """Return how many GPUs a node has in Slurm: `gpu:h100:8(S:0-1),nvme:2` is 8."""
    parts = (re.sub(r"\(.*", "", part).split(":") for part in re.sub(r"\([^)]*\)", "", node.gres).split(","))
    return sum(int(part[-1]) if part[-1].isdigit() else 1 for part in parts if part[0] == "gpu")
