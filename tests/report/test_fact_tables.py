"""Facts as tables: everything is there, and each column says what it means."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from fact_worlds import BEGIN_S, DAY_S, FakeAccounting, add_attempt, incident_row, journal_with, past_run

from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.report import parquet, tables
from slurm_robust.report.facts import Facts
from slurm_robust.report.read import FactSources, read_facts
from slurm_robust.report.table_texts import MEANINGS, VIEWS

HOSTILE = "a|b\n'; DROP TABLE jobs; --\u202e"


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """A day with a row in most tables."""
    journal = journal_with(tmp_path / "state", [incident_row("a", BEGIN_S + 300)])
    add_attempt(journal, end_at_s=BEGIN_S + 310)
    add_attempt(journal, restart=1, start_at_s=BEGIN_S + 400, first_step_at_s=None, last_step=150)
    ledger = NodeLedger(journal)
    ledger.drained("n2", BEGIN_S + 320, "srobust: n2 hangs")
    ledger.drain_ended("n2", BEGIN_S + 400)
    at_s = int(BEGIN_S)
    runs = [
        # Slurm writes into the row of a requeued run when the next one was eligible.
        past_run(7, state="REQUEUED", ended_at_s=at_s + 310, eligible_at_s=at_s + 430),
        past_run(8, name=HOSTILE),
        past_run(9, name="half \ud800 pair", state="NODE_FAIL", nodes="n2", node_count=1),
    ]
    client = FakeAccounting(runs)
    return read_facts(FactSources(tmp_path / "state", client), BEGIN_S, BEGIN_S + DAY_S, BEGIN_S + DAY_S)


@pytest.fixture
def db(facts: Facts) -> sqlite3.Connection:
    """These facts as a database."""
    made = sqlite3.connect(":memory:")
    tables.fill(made, facts)
    return made


def test_every_row_is_there(facts: Facts, db: sqlite3.Connection) -> None:
    """As many as among the facts; texts as they are, lists that unfold."""
    for table in tables.TABLES:
        count = db.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0]
        assert count == len(list(table.rows(facts))), table.name
    assert db.execute("SELECT name FROM jobs WHERE job_id = 8").fetchone()[0] == HOSTILE
    assert db.execute("SELECT name FROM jobs WHERE job_id = 9").fetchone()[0] == "half ? pair"
    used = dict(db.execute("SELECT value, count(*) FROM jobs, json_each(jobs.nodes) GROUP BY value"))
    assert used == {"n1": 2, "n2": 3}
    row = db.execute("SELECT suspected_at_s, fault_at_s, decided_at_s, suspects FROM incidents").fetchone()
    assert row == (BEGIN_S + 300, BEGIN_S + 295, None, '["n2"]')
    assert db.execute("SELECT text FROM doubts").fetchall() == [(doubt,) for doubt in facts.doubts]
    assert db.execute("SELECT cluster, to_s - from_s FROM about").fetchone() == ("c", DAY_S)


def test_views_answer_their_questions(db: sqlite3.Connection) -> None:
    """One training of two attempts; the node that failed; ways back and their times."""
    columns = "lineage, attempts, jobs, node_count, last_step, end_at_s"
    assert db.execute(f"SELECT {columns} FROM trainings").fetchall() == [("7.0", 2, 1, 2, 150, None)]
    node = db.execute("SELECT suspected, drained, reverted, node_fail FROM node_failures WHERE node = 'n2'").fetchone()
    assert node == (1, 1, 1, 1)
    changed = [("n5", 10.0, "slow", 20.0, 0), ("n5", 20.0, "XID 79", None, 0)]
    db.executemany("INSERT INTO drains (node, at_s, reason, ended_at_s, reverted) VALUES (?, ?, ?, ?, ?)", changed)
    assert db.execute("SELECT drained FROM node_failures WHERE node = 'n5'").fetchone() == (1,)
    assert db.execute("SELECT road, incidents, detection_s FROM incidents_by_road").fetchall() == [("seat", 1, 5.0)]
    assert db.execute("SELECT min(queued_s) >= 0 FROM jobs_by_state").fetchone() == (1,)
    states = dict(db.execute("SELECT state, gpu_hours FROM jobs_by_state"))
    assert states["REQUEUED"] == pytest.approx(16 * 310 / 3600)
    for name in VIEWS:
        db.execute(f"SELECT * FROM {name}").fetchall()


def test_roads_that_need_no_daemon_have_their_times_too(facts: Facts) -> None:
    """A restart in place is reported by the job alone."""
    db = sqlite3.connect(":memory:")
    reported = replace(facts.incidents[0], kind="report", road="restart_in_place")
    tables.fill(db, replace(facts, incidents=(*facts.incidents, reported)))
    roads = dict(db.execute("SELECT road, incidents FROM incidents_by_road"))
    assert roads == {"seat": 1, "restart_in_place": 1}


def test_every_column_says_what_it_means(db: sqlite3.Connection) -> None:
    """Those of the views, too; and no meaning is left of a column that went."""
    rows = db.execute('SELECT "table", "column", type, meaning FROM columns').fetchall()
    assert [row for row in rows if not row[3]] == []
    names = {row[1] for row in rows} | {f"{row[0]}.{row[1]}" for row in rows}
    assert set(MEANINGS) <= names
    there = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    assert {row[0] for row in rows} == there - {"columns"}


def test_no_facts_at_all() -> None:
    """Empty tables, and views that work."""
    with sqlite3.connect(":memory:") as db:
        tables.fill(db, Facts(0, 1, 1))
        assert all(db.execute(f"SELECT * FROM {name}").fetchall() == [] for name in VIEWS)


def test_parquet_has_the_same(facts: Facts, tmp_path: Path, db: sqlite3.Connection) -> None:
    """Value by value; lists of nodes are lists. Empty tables are files, too."""
    reader = pytest.importorskip(
        "pyarrow.parquet", reason="pip install 'slurm-robust[parquet]' (scripts/setup --dev does)"
    )
    paths = parquet.write(tmp_path, facts)
    assert {path.stem for path in paths} == {table.name for table in tables.TABLES}
    for path in paths:
        found = [tuple(row.values()) for row in reader.read_table(path).to_pylist()]
        inner = [tuple(json.dumps(v) if isinstance(v, list) else v for v in row) for row in found]
        assert inner == db.execute(f"SELECT * FROM {path.stem}").fetchall(), path.stem
    schema = reader.read_schema(tmp_path / "jobs.parquet")
    assert schema.field("exit_code").metadata == {b"meaning": b"code:signal."}
