"""Tells from the journal how long a drain lasted, and whether it was for nothing."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from slurm_robust.daemon.store.journal import Journal

HOUR_S = 3600.0
_SAME_S = 1.0
"""A drain that ends when another one of the node begins was only given another reason."""
_PASSED = "its check passed, with nothing repaired"


class DrainJudge:
    """Tells whether drains were needless: the only place with that rule. Journals of any version are read.

    A drain was not needless if the node was silent, or a repair was done. Otherwise it was needless if a check passed,
    or a person took the drain back within the hour.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        # Looked up once: an action is found by its incident only, and there are many of them.
        self._repairs = _by_node(db, "repairs", "SELECT node, begun_at_s, acted_at_s, outcome FROM repairs")
        resumes = "SELECT target AS node, called_at_s FROM actions WHERE kind = 'resume'"
        self._resumes = _by_node(db, "actions", resumes)
        self._silent = _by_node(db, "drains", "SELECT node, at_s FROM drains WHERE reason LIKE '%respond%'")
        self._strikes = _by_node(db, "strikes", "SELECT node, at_s FROM strikes")

    def why_reverted(self, node: str, at_s: float, ended_at_s: float | None) -> str:
        """Return why the drain was needless; empty if it was not, or if this is unknown."""
        # Nodes that were drained before the daemon's very first start have no begin.
        if ended_at_s is None or at_s <= 0 or ended_at_s < at_s:
            return ""
        if any(at_s - _SAME_S <= silent_at_s <= ended_at_s for (silent_at_s,) in self._silent[node]):
            return ""  # it is fit now, and was not then
        repairs = [row for row in self._repairs[node] if at_s - _SAME_S <= row[0] <= ended_at_s]
        if any(acted_at_s is not None for _, acted_at_s, _ in repairs):
            return ""
        if any(outcome == "passed" for _, _, outcome in repairs):
            return _PASSED
        if any(at_s <= called_at_s <= ended_at_s + _SAME_S for (called_at_s,) in self._resumes[node]):
            # The daemon had set it DOWN to end a job, and brought it back to be checked.
            struck = any(ended_at_s <= struck_at_s <= ended_at_s + HOUR_S for (struck_at_s,) in self._strikes[node])
            return _PASSED if struck else ""
        return "a person resumed it within the hour" if ended_at_s - at_s <= HOUR_S else ""


def _by_node(db: sqlite3.Connection, table: str, query: str) -> defaultdict[str, list[tuple[Any, ...]]]:
    """Return by node the further values of a query's rows whose first value is a time; empty without the table."""
    found = defaultdict[str, list[tuple[Any, ...]]](list)
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone():
        for node, at_s, *others in db.execute(query):
            if isinstance(at_s, (int, float)):
                found[node].append((at_s, *others))
    return found


@dataclass(frozen=True)
class PastDrain:
    """A node out of service by slurm_robust.

    Attributes:
        ended_at_s: When the node was resumed; None if it still is out of service.
        reverted: Whether the drain was needless, as far as is known: a check passed without a repair, or a person
            resumed the node within the hour.
        why: The reason for that, as a sentence; empty if it was not reverted.
    """

    node: str
    at_s: float
    reason: str
    ended_at_s: float | None
    reverted: bool = False
    why: str = ""


def past_drains(journal: Journal, from_s: float, to_s: float) -> list[PastDrain]:
    """Drains that lasted at some time within this window, oldest first; one whose reason changed is one drain."""
    query = "SELECT node, at_s, reason, ended_at_s FROM drains ORDER BY node, at_s, rowid"
    found: list[PastDrain] = []
    for row in journal.db.execute(query):
        drain = PastDrain(**dict(row))
        last = found[-1] if found and found[-1].node == drain.node else None
        if last is not None and last.ended_at_s is not None and abs(drain.at_s - last.ended_at_s) < _SAME_S:
            found[-1] = PastDrain(last.node, last.at_s, drain.reason, drain.ended_at_s)
        else:
            found.append(drain)
    inside = [d for d in found if d.at_s <= to_s and (d.ended_at_s is None or d.ended_at_s >= from_s)]
    judge = DrainJudge(journal.db)
    return sorted((_judged(judge, drain) for drain in inside), key=lambda d: d.at_s)


def _judged(judge: DrainJudge, drain: PastDrain) -> PastDrain:
    why = judge.why_reverted(drain.node, drain.at_s, drain.ended_at_s)
    return PastDrain(drain.node, drain.at_s, drain.reason, drain.ended_at_s, bool(why), why)
