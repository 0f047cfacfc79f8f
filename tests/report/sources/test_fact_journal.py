"""The journal as facts, whichever version wrote it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from fact_worlds import BEGIN_S, DAY_S, add_attempt, incident_row, journal_with

from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.report.figures.failures import is_failure
from slurm_robust.report.sources import journal as source

NOW_S = BEGIN_S + DAY_S


def test_what_the_daemon_wrote_is_there(tmp_path: Path) -> None:
    """Each table, typed; names of nodes are unfolded."""
    journal = journal_with(tmp_path, [incident_row("a", BEGIN_S + 100, "/some/folder")])
    add_attempt(journal)
    journal.note_call("k.a", incident_row("a", 0).recovery.actions[0], BEGIN_S + 101)  # type: ignore[union-attr]
    journal.db.execute("INSERT INTO pool_sizes VALUES (?, 'p', 'main', 2, 'n[8-9]')", (BEGIN_S - DAY_S,))
    journal.db.execute("INSERT INTO cluster_sizes VALUES (?, 'gpu:8', 100, 8)", (BEGIN_S + 1,))
    journal.db.execute("INSERT INTO strikes VALUES ('n2', 7, '7.0', ?, 'hangs', 'k.a', 'ann', '')", (BEGIN_S + 5,))
    journal.event(BEGIN_S + 9, "error", "clock.back", "the clock was set back by 30 s")
    journal.close()
    facts = source.read(tmp_path, BEGIN_S, NOW_S, NOW_S)
    (incident,) = facts.incidents
    assert (incident.key, incident.suspects, incident.evict, incident.standby) == ("k.a", ("n2",), ("n2",), ("n9",))
    assert (incident.conclusion, incident.road, incident.nodes, incident.folder) == (
        "culprit",
        "seat",
        2,
        "/some/folder",
    )
    assert incident.times == {"fault": BEGIN_S + 95, "suspected": BEGIN_S + 100}
    (attempt,) = facts.attempts
    assert (attempt.nodes, attempt.times.nodes, attempt.times.gpus) == (("n1", "n2"), 2, 16)
    assert (attempt.times.first_step_at_s, attempt.times.first_new_step_at_s) == (BEGIN_S + 30, None)
    (action,) = facts.actions
    assert (action.kind, action.target, action.planned, action.called_at_s) == ("quarantine", "n2", True, BEGIN_S + 101)
    assert facts.pools[0].nodes == ("n8", "n9")
    assert (facts.sizes[0].nodes, facts.strikes[0].node, facts.cluster) == (100, "n2", "c")
    assert facts.doubts == ("At 2026-09-21 14:13:29 UTC the daemon noted: the clock was set back by 30 s.",)


def test_only_what_overlaps_with_the_time(tmp_path: Path) -> None:
    """An incident that was open before counts, and the last size of a pool before, which still holds."""
    rows = [incident_row("over", BEGIN_S - 300), incident_row("open", BEGIN_S - 300, closed_at_s=None, state="open")]
    journal = journal_with(tmp_path, [*rows, incident_row("later", NOW_S + 1)])
    add_attempt(journal, end_at_s=BEGIN_S - 1)
    add_attempt(journal, end_at_s=None)
    for at_s, wanted in ((BEGIN_S - 20, 1), (BEGIN_S - 10, 2), (BEGIN_S + 10, 3), (NOW_S + 10, 4)):
        journal.db.execute("INSERT INTO pool_sizes VALUES (?, 'p', 'main', ?, '')", (at_s, wanted))
    facts = source.read(tmp_path, BEGIN_S, NOW_S, NOW_S)
    assert [incident.id for incident in facts.incidents] == ["open"]
    assert [attempt.times.end_at_s for attempt in facts.attempts] == [None]
    assert [pool.wanted for pool in facts.pools] == [2, 3]
    assert {action.incident for action in facts.actions} == {"k.open"}


def test_a_stop_that_was_alerted_and_then_claimed_is_one_failure(tmp_path: Path) -> None:
    """One incident of one attempt, in two rows: the last of them says what came of it. Another incident is another."""
    first, other = (
        replace(incident_row(name, at_s), key=f"k.{name}.alert_only", kind="report", outcome="alerted")
        for name, at_s in (("a", BEGIN_S + 100), ("b", BEGIN_S + 900))
    )
    journal = journal_with(tmp_path, [first, incident_row("a", BEGIN_S + 400), other])
    journal.close()
    rows = source.read(tmp_path, BEGIN_S, NOW_S, NOW_S).incidents
    assert [(row.key, row.outcome == "superseded", is_failure(row)) for row in rows] == [
        ("k.a.alert_only", True, False),
        ("k.a", False, True),
        ("k.b.alert_only", False, True),
    ]


def test_drains_for_nothing(tmp_path: Path) -> None:
    """Resumed within the hour with nothing repaired; not one that got another reason, was repaired, or lasted."""
    journal = journal_with(tmp_path)
    ledger = NodeLedger(journal)
    for node in ("n1", "n2", "n3", "n4", "n5"):
        ledger.drained(node, BEGIN_S, "srobust: x")
    ledger.drain_ended("n1", BEGIN_S + 600)
    ledger.drained_again("n2", BEGIN_S + 600, "srobust: y")
    ledger.drain_ended("n3", BEGIN_S + 7200)
    row = ("n4", "reboot", "srobust: x", BEGIN_S + 10, BEGIN_S + 20, "passed", BEGIN_S + 500)
    columns = "node, remedy, drained_as, begun_at_s, acted_at_s, outcome, ended_at_s, nth"
    journal.db.execute(f"INSERT INTO repairs({columns}) VALUES (?,?,?,?,?,?,?,1)", row)
    ledger.drain_ended("n4", BEGIN_S + 600)
    facts = source.read(tmp_path, BEGIN_S, NOW_S, NOW_S)
    assert [drain.node for drain in facts.drains if drain.reverted] == ["n1"]
    assert len(facts.drains) == 6
    assert (facts.repairs[0].remedy, facts.repairs[0].outcome) == ("reboot", "passed")


def test_an_older_journal_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """What was not recorded then is a doubt."""
    journal_with(tmp_path, [incident_row("a", BEGIN_S + 1)], new=False).close()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.executescript("DROP TABLE repairs; DROP TABLE pair_tests; PRAGMA user_version = 3")
    facts = source.read(tmp_path, BEGIN_S, NOW_S, NOW_S)
    assert len(facts.incidents) == 1
    assert "version 3, of an older srobustd, and nothing about attempts, pool_sizes, cluster_sizes" in facts.doubts[0]


def test_a_damaged_row_costs_no_other(tmp_path: Path) -> None:
    """It is counted."""
    journal = journal_with(tmp_path, [incident_row("a", BEGIN_S + 1), incident_row("b", BEGIN_S + 2)])
    journal.db.execute("UPDATE incidents SET verdict = '{' WHERE id = 'a'")
    journal.db.execute("UPDATE actions SET args = '{' WHERE incident = 'k.b'")
    add_attempt(journal, nodes="n[")
    add_attempt(journal, start_at_s="soon")
    add_attempt(journal, restart=1)
    facts = source.read(tmp_path, BEGIN_S, NOW_S, NOW_S)
    assert [incident.id for incident in facts.incidents] == ["b"]
    assert [attempt.times.restart for attempt in facts.attempts] == [1]
    assert len(facts.doubts) == 3
    assert any("attempts have 2 rows" in doubt for doubt in facts.doubts)


def test_a_journal_that_cannot_be_read_is_a_doubt(tmp_path: Path) -> None:
    """It is not there, is no journal, or its pages are damaged."""
    assert "was not read" in source.read(tmp_path, BEGIN_S, NOW_S, NOW_S).doubts[0]
    (tmp_path / "journal.sqlite").write_bytes(b"not a database" * 100)
    assert "was not read" in source.read(tmp_path, BEGIN_S, NOW_S, NOW_S).doubts[0]
    (tmp_path / "journal.sqlite").unlink()
    journal_with(tmp_path, [incident_row(f"i{n}", BEGIN_S + n) for n in range(200)]).close()
    path = tmp_path / "journal.sqlite"
    raw = bytearray(path.read_bytes())
    raw[4096 * 4 :] = b"\xff" * (len(raw) - 4096 * 4)
    path.write_bytes(raw)
    facts = source.read(tmp_path, BEGIN_S, NOW_S, NOW_S)
    assert facts.incidents == ()
    assert "nothing of it is shown" in facts.doubts[0] or "was not read" in facts.doubts[0]


def test_nothing_is_written(tmp_path: Path) -> None:
    """The daemon may write at the same time: its rows come with the next reading."""
    journal = journal_with(tmp_path, [incident_row("a", BEGIN_S + 1)])
    before = journal.revision
    assert len(source.read(tmp_path, BEGIN_S, NOW_S, NOW_S).incidents) == 1
    assert journal.revision == before
    journal.add_incident(incident_row("b", BEGIN_S + 2))
    assert len(source.read(tmp_path, BEGIN_S, NOW_S, NOW_S).incidents) == 2
