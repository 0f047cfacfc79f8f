"""What the journal can tell of a drain afterwards: how long it lasted, and whether it was taken back for nothing."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_robust.daemon.store.journal import Journal

HOUR_S = 3600.0
_SAME_S = 1.0
"""A drain that ends when another one of the node begins was only given another reason."""


@dataclass(frozen=True)
class PastDrain:
    """A node out of service by slurm_robust.

    Attributes:
        ended_at_s: When it was resumed; None where it still is out of service.
        reverted: It was taken out for nothing, as far as anybody knows: a check passed with nothing repaired, or a
            person resumed it within the hour.
        why: What says so, as a sentence; empty where it was not reverted.
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
    return sorted((_judged(journal, drain) for drain in inside), key=lambda d: d.at_s)


def _judged(journal: Journal, drain: PastDrain) -> PastDrain:
    why = _reverted(journal, drain)
    return PastDrain(drain.node, drain.at_s, drain.reason, drain.ended_at_s, bool(why), why)


def _reverted(journal: Journal, drain: PastDrain) -> str:
    """Why the drain was for nothing; empty where it was not, or where nobody knows."""
    ended_at_s = drain.ended_at_s
    # Nodes that were drained before the daemon's very first start have no begin.
    if ended_at_s is None or drain.at_s <= 0:
        return ""
    during = "node = ? AND begun_at_s >= ? AND begun_at_s <= ?"
    repairs = journal.db.execute(
        f"SELECT acted_at_s FROM repairs WHERE {during} AND outcome = 'passed' ORDER BY number",  # noqa: S608
        (drain.node, drain.at_s - _SAME_S, ended_at_s),
    ).fetchall()
    if repairs:
        acted = any(row["acted_at_s"] is not None for row in repairs)
        return "" if acted else "its check passed, with nothing repaired"
    own = journal.db.execute(
        "SELECT 1 FROM actions WHERE kind = 'resume' AND target = ? AND called_at_s BETWEEN ? AND ?",
        (drain.node, drain.at_s, ended_at_s + _SAME_S),
    ).fetchone()
    if own is not None:
        # The daemon had set it DOWN to end a job, and brought it back to be checked.
        passed = journal.db.execute(
            "SELECT 1 FROM strikes WHERE node = ? AND at_s BETWEEN ? AND ?",
            (drain.node, ended_at_s, ended_at_s + HOUR_S),
        ).fetchone()
        return "its check passed, with nothing repaired" if passed is not None else ""
    return "a person resumed it within the hour" if ended_at_s - drain.at_s <= HOUR_S else ""
