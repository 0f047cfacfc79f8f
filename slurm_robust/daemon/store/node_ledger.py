"""Keeps in the journal what is known about nodes: quarantines, strikes, checks of standby nodes, drains."""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import dataclass

from slurm_robust.core.model import Mode
from slurm_robust.daemon.store.drain_history import past_drains
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.policy.cluster.breaker import ClaimedNode, Drain, TakenOut
from slurm_robust.policy.cluster.recovery_plan import CLAIM
from slurm_robust.policy.cluster.standby_health import StandbyCheck, Suspicion
from slurm_robust.policy.cluster.strikes import Strike


@dataclass(frozen=True)
class Quarantine:
    """A suspect, kept free of jobs until it was checked.

    Attributes:
        tries: The number of inconclusive rechecks.
        recheck_job: Job id of the recheck under way, None if there is none.
        word: What the node waits for, or the result of the last recheck.
        user: The user of the job that suspected it; empty if no job did.
        accused: The test in which it was the partner and came under suspicion; empty for a job's suspect.
        checked_at_s: When it passed its full check; None before that.
        soaked: The number of rounds of checks and tests that it has passed while it soaks.
    """

    node: str
    incident: str
    job_id: int
    lineage: str
    why: str
    since_s: float
    next_try_at_s: float
    tries: int = 0
    recheck_job: int | None = None
    recheck_at_s: float | None = None
    word: str = ""
    user: str = ""
    accused: str = ""
    checked_at_s: float | None = None
    soaked: int = 0

    @property
    def of_claim(self) -> bool:
        """Whether a job's claim is all that speaks against the node: no test, no report and no repair put it here."""
        return bool(self.job_id) and not self.accused

    @property
    def after_drain(self) -> bool:
        """Whether a repair put the node here: it was drained before."""
        return not (self.job_id or self.lineage or self.accused)


class NodeLedger:
    """Reads and writes these tables."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.db: sqlite3.Connection = journal.db

    def quarantines(self) -> list[Quarantine]:
        """Return all nodes in quarantine."""
        return self.journal.remembered("quarantines", self._quarantines)

    def _quarantines(self) -> list[Quarantine]:
        columns = ", ".join(Quarantine.__dataclass_fields__)
        rows = self.db.execute(f"SELECT {columns} FROM quarantines ORDER BY node")  # noqa: S608 (our own names)
        return [Quarantine(**dict(r)) for r in rows]

    def quarantine(self, q: Quarantine) -> None:
        """Add a node; one that is in quarantine already is not changed."""
        columns, marks = ", ".join(vars(q)), ", ".join(f":{name}" for name in vars(q))
        self.db.execute(f"INSERT OR IGNORE INTO quarantines({columns}) VALUES({marks})", vars(q))

    def no_recheck(self, node: str, why: str) -> None:
        """Note for every incident that planned a recheck of this node, but had none, why it was not needed."""
        self.db.execute(
            "UPDATE actions SET error = ? WHERE kind = 'recheck' AND target = ? AND calls = 0 AND error = ''",
            (f"not needed: {why}", node),
        )

    def _update(self, table: str, node: str, **values: float | str | None) -> None:
        columns = ", ".join(f"{name} = :{name}" for name in values)
        query = f"UPDATE {table} SET {columns} WHERE node = :node"  # noqa: S608 (our own names)
        self.db.execute(query, {**values, "node": node})

    def rechecking(self, node: str, job_id: int, at_s: float, word: str) -> None:
        """Note the recheck that is under way."""
        self._update("quarantines", node, recheck_job=job_id, recheck_at_s=at_s, word=word)

    def wait(self, q: Quarantine, next_try_at_s: float, word: str, *, tried: bool = False) -> None:
        """Note until when the node has to wait; `tried`: after an inconclusive recheck, which is counted."""
        now = {"tries": q.tries + tried, "recheck_job": None, "recheck_at_s": None, "next_try_at_s": next_try_at_s}
        self._update("quarantines", q.node, **now, word=word)

    def wait_at_most(self, until_s: float) -> None:
        """Limit the ends of waits and the times of drains and checks to this, since the clock was set back."""
        self.db.execute("UPDATE drains SET at_s = min(at_s, ?)", (until_s,))
        self.db.execute("UPDATE quarantines SET next_try_at_s = min(next_try_at_s, ?)", (until_s,))
        self.db.execute("UPDATE quarantines SET recheck_at_s = min(recheck_at_s, ?)", (until_s,))
        self.db.execute("UPDATE quarantines SET checked_at_s = min(checked_at_s, ?)", (until_s,))
        self.db.execute("UPDATE standby_checks SET next_try_at_s = min(next_try_at_s, ?)", (until_s,))
        self.db.execute("UPDATE standby_checks SET begun_at_s = min(begun_at_s, ?)", (until_s,))

    def leave(self, node: str) -> None:
        """Remove a node from quarantine."""
        self.db.execute("DELETE FROM quarantines WHERE node = ?", (node,))

    def checked(self, node: str, at_s: float, word: str) -> None:
        """Note that the node has passed its full check; tests together with another node come next."""
        self._update("quarantines", node, recheck_job=None, recheck_at_s=None, checked_at_s=at_s, word=word)

    def soak(self, q: Quarantine, next_try_at_s: float, word: str) -> None:
        """Note that the node has passed a round, and when the next one begins."""
        new = {"recheck_job": None, "recheck_at_s": None, "checked_at_s": None, "tries": 0, "soaked": q.soaked + 1}
        self._update("quarantines", q.node, **new, next_try_at_s=next_try_at_s, word=word)

    def waits_for(self, node: str, word: str) -> None:
        """Note the reason for which the node waits."""
        self._update("quarantines", node, word=word)

    def strike(self, q: Quarantine, at_s: float, why: str, failed_test: str = "") -> None:
        """Count a strike, once for each incident: a job suspected the node, and it passed its check."""
        values = (q.node, q.job_id, q.lineage, at_s, why, q.incident, q.user, failed_test)
        once = "NOT EXISTS (SELECT 1 FROM strikes WHERE node = ? AND incident = ? AND job_id = ?)"
        self.db.execute(
            "INSERT INTO strikes(node, job_id, lineage, at_s, why, incident, user, failed_test) "
            f"SELECT ?,?,?,?,?,?,?,? WHERE {once}",
            (*values, q.node, q.incident, q.job_id),
        )

    def strikes(self, node: str, since_s: float) -> list[Strike]:
        """Strikes of a node since then."""
        query = "SELECT job_id, lineage, user, failed_test FROM strikes WHERE node = ? AND at_s >= ?"
        return [Strike(**dict(r)) for r in self.db.execute(query, (node, since_s))]

    def all_strikes(self, since_s: float) -> dict[str, list[Strike]]:
        """Strikes since then, of every node that has any."""
        rows = self.db.execute("SELECT DISTINCT node FROM strikes WHERE at_s >= ?", (since_s,))
        return {r["node"]: self.strikes(r["node"], since_s) for r in rows}

    def announced(self, key: str, text: str) -> bool:
        """Return whether this was said under that key already, and nothing else since; it is written down as said."""
        if self.journal.get(key) == text:
            return True
        self.journal.put(key, text)
        return False

    def standby_checks(self) -> dict[str, StandbyCheck]:
        """Return the full checks of pool members, by node."""
        columns = ", ".join(StandbyCheck.__dataclass_fields__)
        rows = self.db.execute(f"SELECT {columns} FROM standby_checks")  # noqa: S608 (our own names)
        return {r["node"]: StandbyCheck(**dict(r)) for r in rows}

    def standby_check_begun(self, node: str, job_id: int, at_s: float) -> None:
        """Note a check that is under way."""
        self.db.execute(
            "INSERT INTO standby_checks(node, job_id, begun_at_s) VALUES(?, ?, ?) ON CONFLICT(node) DO UPDATE SET "
            "job_id = excluded.job_id, begun_at_s = excluded.begun_at_s",
            (node, job_id, at_s),
        )

    def standby_checked(self, node: str, at_s: float, word: str) -> None:
        """Note a check that passed, or counts as passed."""
        ended = {"job_id": None, "ended_at_s": at_s, "passed_at_s": at_s, "tries": 0, "next_try_at_s": 0.0}
        self._update("standby_checks", node, **ended, word=word)

    def standby_not_checked(self, node: str, at_s: float, next_try_at_s: float, tries: int, word: str) -> None:
        """Note a check that failed, or was inconclusive."""
        ended = {"job_id": None, "ended_at_s": at_s, "passed_at_s": 0.0, "tries": tries}
        self._update("standby_checks", node, **ended, next_try_at_s=next_try_at_s, word=word)

    def standby_met(self, node: str, at_s: float, word: str) -> None:
        """Note that a member was tested with another node, or that nothing more is to be learnt so; 0: not (any more).

        What a node was found with beside another says nothing more once it is 0.
        """
        self._update("standby_checks", node, met_at_s=at_s, word=word)

    def standby_doubted(self, node: str) -> None:
        """Note that what a member passed does not count any more: a job has suspected it since."""
        self._update("standby_checks", node, passed_at_s=0.0, met_at_s=0.0, word="suspected since its last check")

    def suspected(self, since_s: float) -> dict[str, Suspicion]:
        """Return the newest suspicion since then of each node that an incident left without taking it out."""
        rows = self.journal.remembered("suspected", lambda: self._suspected(since_s))
        return {s.node: s for s in rows if s.at_s > since_s}

    def _suspected(self, since_s: float) -> list[Suspicion]:
        values = (since_s, Mode.ACT.value)
        taken = self.db.execute(
            "SELECT i.key, a.target FROM incidents i JOIN actions a ON a.incident = i.key "
            "WHERE i.opened_at_s > ? AND i.mode = ? AND a.kind IN ('quarantine', 'drain')",
            values,
        )
        aside = {(r["key"], r["target"]) for r in taken}
        query = (
            "SELECT key, job, opened_at_s, plan FROM incidents WHERE opened_at_s > ? AND mode = ? ORDER BY opened_at_s"
        )
        plans = self.db.execute(query, values)
        return [
            Suspicion(node, r["opened_at_s"], r["job"])
            for r in plans
            for node in (json.loads(r["plan"] or "null") or {}).get("evict", ())
            if (r["key"], node) not in aside
        ]

    def standby_left(self, node: str) -> None:
        """Forget a node that is not a member any more."""
        self.db.execute("DELETE FROM standby_checks WHERE node = ?", (node,))

    def releases(self, address: str, since_s: float) -> int:
        """Return how often this job was released since then."""
        query = "SELECT count(*) FROM actions WHERE kind = 'release_job' AND target = ? AND called_at_s >= ?"
        return int(self.db.execute(query, (address, since_s)).fetchone()[0])

    def drains(self) -> list[Drain]:
        """Return drains with our prefix, including drains that a person has ended."""
        rows = self.db.execute("SELECT node, at_s, ended_at_s FROM drains")
        return [Drain(r["node"], r["at_s"], r["ended_at_s"] is None) for r in rows]

    def taken_out(self, since_s: float) -> TakenOut:
        """Return the nodes that this project took out of service; for claims, only since then."""
        now = [Drain(q.node, q.since_s) for q in self.quarantines() if not q.after_drain]
        return TakenOut(self.drains(), now, self._claimed(since_s))

    def _claimed(self, since_s: float) -> list[ClaimedNode]:
        """Nodes that accepted claims took out of service since then, as they were planned."""
        query = (
            "SELECT a.target AS node, i.user, i.opened_at_s AS at_s "
            "FROM incidents i JOIN actions a ON a.incident = i.key WHERE i.opened_at_s > ? "
            "AND i.kind = ? AND i.mode = ? AND a.planned AND a.kind IN ('quarantine', 'drain')"
        )
        rows = self.db.execute(query, (since_s, CLAIM, Mode.ACT.value))
        return [ClaimedNode(**dict(r)) for r in rows]

    def open_drains(self) -> dict[str, str]:
        """Nodes that are out of service by our drains, and why."""
        rows = self.db.execute("SELECT node, reason FROM drains WHERE ended_at_s IS NULL")
        return {r["node"]: r["reason"] for r in rows}

    def failures(self, since_s: float) -> list[tuple[str, float]]:
        """Nodes that failed since then, and when: drained by us, and not for nothing, or lost to a job."""
        drains = past_drains(self.journal, since_s, math.inf)
        found = [(drain.node, drain.at_s) for drain in drains if drain.at_s >= max(since_s, 1.0) and not drain.reverted]
        for row in self.journal.incidents("kind = 'node_lost' AND opened_at_s >= ?", (since_s,)):
            incident = row.incident
            if row.outcome != "came_back" and incident.verdict is not None:
                found += [(suspect.node, incident.opened_at_s) for suspect in incident.verdict.suspects]
        return found

    def first_at_s(self) -> float | None:
        """Return when the journal's oldest event was written; None if it has no event."""
        row = self.db.execute("SELECT min(at_s) AS at_s FROM events WHERE at_s > 0").fetchone()
        return None if row["at_s"] is None else float(row["at_s"])

    def drained(self, node: str, at_s: float, reason: str) -> None:
        """Note a node that is out of service with a reason of ours."""
        self.db.execute("INSERT INTO drains VALUES(?,?,?,NULL)", (node, at_s, reason))

    def open_drain_times(self) -> dict[str, float]:
        """Return when each node with an open drain was drained."""
        rows = self.db.execute("SELECT node, at_s FROM drains WHERE ended_at_s IS NULL")
        return {r["node"]: r["at_s"] for r in rows}

    def drained_again(self, node: str, at_s: float, reason: str) -> None:
        """Note that the daemon gave a drain another reason."""
        with self.journal.transaction():
            self.drain_ended(node, at_s)
            self.drained(node, at_s, reason)

    def drain_explained(self, node: str, reason: str) -> None:
        """Note that the reason of a drain says more now."""
        self.db.execute("UPDATE drains SET reason = ? WHERE node = ? AND ended_at_s IS NULL", (reason, node))

    def drain_ended(self, node: str, at_s: float) -> None:
        """Note that a person has resumed the node."""
        self.db.execute("UPDATE drains SET ended_at_s = ? WHERE node = ? AND ended_at_s IS NULL", (at_s, node))
