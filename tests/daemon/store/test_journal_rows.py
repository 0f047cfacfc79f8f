"""The journal: survives anything, forgets what is old, refuses what is newer."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_robust.core.model import (
    Action,
    ActionKind,
    Attempt,
    Conclusion,
    Incident,
    JobRef,
    Plan,
    Road,
    StackClass,
    Suspect,
    Verdict,
)
from slurm_robust.daemon.store.journal import CLOSED, FILE_NAME, IncidentRow, Journal
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.daemon.store.schema import MIGRATIONS, JournalError
from slurm_robust.policy.cluster.recovery_plan import CLAIM, NODE_LOST, Recovery
from slurm_robust.policy.cluster.recovery_step import GiveUp
from slurm_robust.policy.cluster.strikes import counted

VERDICT = Verdict(Conclusion.CULPRIT, "ü", (Suspect("n2", (1,), 0.8, "hangs"),), (StackClass("0-2", ("f (a.py:1)",)),))
DRAIN = Action(ActionKind.DRAIN, "n2", "srobust: '; DROP TABLE incidents;--")


def row(key: str = "1.r0.5.i", **more: object) -> IncidentRow:
    """An incident with a plan of two actions."""
    recovery = Recovery(CLAIM, JobRef(7, 5, 2), "ann", 0, bad=("n2",), seat="s", actions=(DRAIN, DRAIN))
    attempt = Attempt("c", "5_2", 0, 5)
    own = {name: more.pop(name) for name in ("opened_at_s", "times", "verdict") if name in more}
    values = {"id": "i", "job": "5_2", "attempt": attempt.key, "opened_at_s": 100.0, "plan": recovery.plan, **own}
    incident = Incident(**values)  # type: ignore[arg-type]
    row = IncidentRow(key, incident, attempt, 7, "ann", CLAIM, "act", recovery=recovery, seat=True)
    return replace(row, **more)  # type: ignore[arg-type]


def test_round_trip_after_another_process_died(tmp_path: Path) -> None:
    """What was written is there for the next one, values and plan, without the first one closing anything."""
    first = Journal.open(tmp_path)
    first.add_incident(row(times={"fault": 99.5}, verdict=VERDICT, confidence=0.8, step=7, claimed_at_s=99.0))
    first.note_call("1.r0.5.i", DRAIN, 101.0)
    second = Journal.open(tmp_path)
    found = second.incident("1.r0.5.i")
    assert found is not None
    assert found.recovery == row().recovery
    assert found == row(times={"fault": 99.5}, verdict=VERDICT, confidence=0.8, step=7, claimed_at_s=99.0)
    called = second.actions("1.r0.5.i")[0]
    assert (called.calls, called.done_at_s) == (1, None)
    second.update_incident("1.r0.5.i", times={"running": 120.0}, state=CLOSED, closed_at_s=121.0)
    again = first.incident("1.r0.5.i")
    assert again is not None
    assert again.incident.times == {"fault": 99.5, "running": 120.0}
    first.close()
    second.close()


def test_same_incident_once(tmp_path: Path) -> None:
    """A second one of the same key changes nothing."""
    journal = Journal.open(tmp_path)
    journal.add_incident(row())
    journal.add_incident(row(user="eve"))
    assert [r.user for r in journal.incidents()] == ["ann"]
    assert len(journal.actions("1.r0.5.i")) == 2
    assert journal.seats_since(0, user="ann") == 1
    assert journal.seats_since(101, user="ann") == 0
    journal.close()


def test_seats_that_brought_no_new_step_are_counted(tmp_path: Path) -> None:
    """By the steps that the job told with its claims. What the daemon gave for a lost node is not the job's doing."""
    journal = Journal.open(tmp_path)
    for number, step in enumerate((4, 9, 9, -1)):
        journal.add_incident(row(f"i{number}", opened_at_s=100.0 + number, step=step))
    journal.add_incident(row("lost", opened_at_s=105.0, kind=NODE_LOST))
    journal.add_incident(row("another's", opened_at_s=105.0, job_id=8))
    assert journal.fruitless_seats(0.0, 7, -1) == 3, "the one at step 4 brought it to step 9"
    assert journal.fruitless_seats(102.5, 7, -1) == 1
    assert journal.fruitless_seats(0.0, 7, 10) == 0
    assert journal.fruitless_seats(0.0, 9, -1) == 0
    journal.close()


def test_unplanned_actions_get_a_row(tmp_path: Path) -> None:
    """An action found necessary on the way stands behind the plan, marked so."""
    journal = Journal.open(tmp_path)
    journal.add_incident(row())
    down = Action(ActionKind.SET_DOWN, "n2", "srobust: holds up")
    journal.note_call("1.r0.5.i", down, 1.0)
    journal.note_result("1.r0.5.i", down, 2.0, "refused")
    journal.note_call("1.r0.5.i", down, 3.0)
    journal.note_result("1.r0.5.i", down, 4.0)
    last = journal.actions("1.r0.5.i")[-1]
    assert (last.seq, last.planned, last.calls, last.called_at_s, last.done_at_s, last.error) == (
        2,
        False,
        2,
        1.0,
        4.0,
        "",
    )
    journal.close()


def test_retention(tmp_path: Path) -> None:
    """Old closed incidents go with their actions; open ones stay however old."""
    journal = Journal.open(tmp_path)
    journal.add_incident(row("old"))
    journal.add_incident(row("open"))
    journal.update_incident("old", state=CLOSED, closed_at_s=50.0)
    journal.event(10.0, "info", "x", "y")
    journal.forget_before(60.0)
    assert [r.key for r in journal.incidents()] == ["open"]
    assert journal.actions("old") == []
    assert journal.db.execute("SELECT count(*) FROM events").fetchone()[0] == 0
    journal.close()


def test_strikes_need_different_jobs_and_lineages(tmp_path: Path) -> None:
    """One job with many names, or one training with many jobs, is one voice."""
    journal = Journal.open(tmp_path)
    ledger = NodeLedger(journal)
    for job_id, lineage in ((1, "a"), (1, "b"), (1, "c")):
        ledger.strike(Quarantine("n1", "k", job_id, lineage, "", 0, 0), 10.0, "passed")
    for job_id, lineage in ((1, "a"), (2, "a"), (3, "a")):
        ledger.strike(Quarantine("n2", "k", job_id, lineage, "", 0, 0), 10.0, "passed")
    for job_id, lineage in ((1, "a"), (2, "b"), (3, "c")):
        ledger.strike(Quarantine("n3", "k", job_id, lineage, "", 0, 0), 10.0, "passed")
    assert [counted(ledger.strikes(n, 0)) for n in ("n1", "n2", "n3")] == [1, 1, 3]
    assert ledger.strikes("n3", 11.0) == []
    journal.close()


def test_newer_and_broken_files_are_refused(tmp_path: Path) -> None:
    """A journal of a newer version, or no journal at all, is an error that names the file and what to do."""
    Journal.open(tmp_path).close()
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(JournalError, match="newer"):
        Journal.open(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 100)
    with pytest.raises(JournalError, match="state_dir"):
        Journal.open(tmp_path)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0


OLD_ROW = {
    "key": "1.r0.5.i", "id": "i", "job_id": 7, "job": "5_2", "user": "ann", "lineage": "l", "cluster": "c",
    "restart": 1, "start_at_s": 5, "kind": CLAIM, "mode": "act", "state": "open", "outcome": "", "reason": "",
    "opened_at_s": 100.0, "closed_at_s": None, "recovery": None, "times": '{"fault":99.5}', "report": "/r", "seat": 1,
    "verdict": '{"conclusion":"culprit","confidence":0.9,"why":"hangs","suspects":["n2"],"step":4,"at_s":98.0}',
    "abort": "aborted|drain was refused: a|b",
}  # fmt: skip
"""An incident as version 2 of the journal wrote it."""


def old_journal(folder: Path, **changes: object) -> None:
    """A journal of version 2 with one incident."""
    db = sqlite3.connect(folder / FILE_NAME)
    for script in MIGRATIONS[:2]:
        db.executescript(script)
    db.execute("PRAGMA user_version = 2")
    values = {**OLD_ROW, **changes}
    names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    db.execute(f"INSERT INTO incidents({names}) VALUES({marks})", values)
    db.commit()
    db.close()


@pytest.mark.parametrize("read_only", [True, False])
def test_an_older_journal_is_read(tmp_path: Path, read_only: bool) -> None:
    """A new `srobust incidents` beside a daemon that was not started again yet, and a new daemon, which migrates."""
    old_journal(tmp_path)
    journal = Journal.open(tmp_path, read_only=read_only)
    (row,) = journal.incidents()
    assert row.attempt == Attempt("c", "5_2", 1, 5)
    assert row.incident.verdict == Verdict(Conclusion.CULPRIT, "hangs", (Suspect("n2", (), 0.9, "hangs"),))
    assert (row.incident.plan, row.incident.times, row.seat) == (None, {"fault": 99.5}, True)
    assert (row.confidence, row.step, row.claimed_at_s) == (0.9, 4, 98.0)
    assert row.abort == GiveUp("aborted", "drain was refused: a|b")
    assert journal.fruitless_seats(0.0, 7, 4) == 1
    assert journal.db.execute("PRAGMA user_version").fetchone()[0] == (2 if read_only else len(MIGRATIONS))
    journal.close()


def test_an_older_report_keeps_its_plan(tmp_path: Path) -> None:
    """It stood within the verdict."""
    verdict = '{"conclusion":"","why":"w","suspects":[],"road":"restart_in_place","evict":["n3"]}'
    old_journal(tmp_path, kind="report", verdict=verdict, abort="")
    journal = Journal.open(tmp_path)
    (row,) = journal.incidents()
    assert row.incident.plan == Plan(Road.RESTART_IN_PLACE, "w", ("n3",))
    assert row.incident.verdict == Verdict(Conclusion.UNDETERMINED, "w")
    assert row.abort is None
    journal.close()


def test_why_a_recovery_is_given_up_is_kept_as_a_value(tmp_path: Path) -> None:
    """Whatever stands in the reason."""
    journal = Journal.open(tmp_path)
    journal.add_incident(row())
    journal.give_up("1.r0.5.i", GiveUp("aborted", "{a|b"))
    (found,) = journal.incidents()
    assert found.abort == GiveUp("aborted", "{a|b")
    journal.close()


def test_unfinished_incidents_are_found_by_their_index(tmp_path: Path) -> None:
    """They are asked for every second, and the journal keeps a year."""
    journal = Journal.open(tmp_path)
    journal.add_incident(row("open"))
    journal.add_incident(row("running"))
    journal.add_incident(row("closed"))
    journal.update_incident("running", state="running")
    journal.close_incident("closed", "ended", "it ended", 200.0)
    assert {r.key for r in journal.unfinished()} == {"open", "running"}
    (closed,) = journal.incidents("key = ?", ("closed",))
    assert (closed.state, closed.outcome, closed.reason, closed.closed_at_s) == (CLOSED, "ended", "it ended", 200.0)
    query = "EXPLAIN QUERY PLAN SELECT * FROM incidents WHERE state != 'closed' ORDER BY opened_at_s DESC"
    assert "incidents_unfinished" in "".join(r["detail"] for r in journal.db.execute(query))
    journal.close()
