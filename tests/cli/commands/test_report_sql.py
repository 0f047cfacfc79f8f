"""`srobust report sql` and `srobust report export`, on a journal and a sacct of a few lines."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from fact_worlds import add_attempt, journal_with
from helpers import mounted_tmpfs

from slurm_robust.cli.commands import report_sql
from slurm_robust.cli.commands.report import command
from slurm_robust.cli.csv_output import cell
from slurm_robust.cli.report_source import FactOptions, load_facts, moment
from slurm_robust.report import parquet

Call = Callable[..., Result]
EVIL = "=cmd|' /C calc'!A0"


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Runs `srobust report WORDS…` there; the accounting has one job, with an evil name."""
    now_s = int(time.time())
    journal = journal_with(tmp_path / "state")
    add_attempt(journal, start_at_s=now_s - 3600, eligible_at_s=now_s - 3600, first_step_at_s=None)
    row = f"5|5|c|ann|lab|{EVIL}\033[31m|main|n[1-2]|2|gres/gpu=16|gres/gpu=16|{now_s - 90}|{now_s - 90}|{now_s - 60}|"
    fields = (row + f"{now_s}|FAILED|1:0").split("|")
    # The name itself has a `|`.
    fields = [*fields[:5], "|".join(fields[5:7]), *fields[7:]]
    sacct = tmp_path / "sacct"
    text = "@@".join(fields)
    program = "for a; do case $a in --delimiter=*) d=${a#--delimiter=};; esac; done\n"
    program += f"sed \"s/@@/$d/g\" <<'EOF'\n{text}\nEOF"
    sacct.write_text(f"#!/bin/sh\n{program}\n")
    sacct.chmod(0o755)
    config = tmp_path / "robust.yaml"
    config.write_text(f"daemon: {{state_dir: {tmp_path}/state}}\nslurm: {{bin_dir: {tmp_path}}}\n")

    def run(*words: str) -> Result:
        with_config = [*words[:1], "--config", str(config), "--since", "12h", *words[1:]]
        return CliRunner().invoke(command, with_config, env={"COLUMNS": "200"})

    return run


def test_without_a_question_it_teaches(call: Call) -> None:
    """Tables, views with their questions, and the meaning of each column; nothing is read for it."""
    done = CliRunner().invoke(command, ["sql", "--config", "/nowhere"])
    assert done.exit_code == 0
    assert "node_failures: Which nodes fail again and again?" in done.output
    assert "Of the verdict, 0 to 1." in done.output


def test_a_table_for_people(call: Call) -> None:
    """No command reaches the terminal; doubts are on stderr."""
    done = call("sql", "SELECT name, gpus FROM jobs")
    assert done.exit_code == 0
    assert f"{EVIL}?[31m" in done.stdout
    assert "\033" not in done.output
    assert "Note: The accounting lacks 1 supervised runs (job 7)" in done.stderr
    rows = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1500) SELECT x FROM n"
    assert "There are more than 1000 rows; all of them: --csv or --json" in call("sql", rows).stdout


def test_csv_runs_nothing(call: Call) -> None:
    """A text that a spreadsheet would take for a formula is a text; numbers stay numbers."""
    done = call("sql", "--csv", "SELECT name, -gpus AS minus, NULL, x'00ff' FROM jobs")
    assert list(csv.reader(io.StringIO(done.stdout))) == [
        ["name", "minus", "NULL", "x'00ff'"],
        [f"'{EVIL}?[31m", "-16", "", "00ff"],
    ]


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "'=1", '"=1', "＝1", "%0", "|x"]
)
def test_no_cell_is_a_formula(text: str) -> None:
    """However it begins."""
    assert str(cell(text)).startswith("'")
    assert (cell(-1), cell(None), cell("n1"), cell("a=1")) == (-1, None, "n1", "a=1")


def test_json_for_tools(call: Call) -> None:
    """Its keys are documented; what JSON does not know is null."""
    done = call("sql", "--json", "SELECT name, 9e999 AS much FROM jobs")
    found = json.loads(done.stdout)
    assert list(found) == ["version", "columns", "rows", "doubts"]
    assert (found["columns"], found["rows"]) == (["name", "much"], [[f"{EVIL}\033[31m", None]])
    assert len(found["doubts"]) == 1


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("DELETE FROM jobs", "only SELECT is possible here"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("ATTACH '/tmp/other' AS other", "only SELECT is possible here"),
        ("PRAGMA writable_schema = 1", "only SELECT is possible here"),
        ("SELECT load_extension('x')", "only SELECT is possible here"),
        ("SELECT fts3_tokenizer('simple')", "only SELECT is possible here"),
        pytest.param(
            "SELECT hex(randomblob(400000000))",
            "too big",
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python cannot set SQLite's limits"),
        ),
        ("SELECT * FROM nope", "no such table: nope"),
        ("SELECT 'a\0b'", "srobust report sql"),
        ("/* nothing */", "this is no SELECT"),
    ],
)
def test_it_can_read_and_nothing_else(call: Call, question: str, words: str) -> None:
    """The message says what to type."""
    done = call("sql", "--no-accounting", question)
    assert done.exit_code == 1
    assert words in done.stderr
    assert "srobust report sql" in done.stderr


def test_a_question_without_end_ends(call: Call) -> None:
    """At its deadline."""
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    done = call("sql", "--no-accounting", "--timeout", "1", endless)
    assert done.exit_code == 1
    assert "it took longer than 1 s" in done.stderr


def test_json_of_rows_without_end_ends(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made as a whole, so that its rows are bounded before the memory is full."""
    monkeypatch.setattr(report_sql, "_JSON_MAX", 10)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    done = call("sql", "--no-accounting", "--json", endless)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "more than 10 rows; ask for less, or type --csv" in done.stderr


def test_an_accounting_that_is_away_is_a_note(call: Call, tmp_path: Path) -> None:
    """The journal alone goes on."""
    (tmp_path / "sacct").write_text("#!/bin/sh\necho 'sacct: error: Problem talking to the database' >&2; exit 1\n")
    done = call("sql", "SELECT job_id, node_count FROM attempts")
    assert done.exit_code == 0
    assert "7" in done.stdout
    assert "The accounting was not read" in done.stderr
    assert "Problem talking to the database" in done.stderr


def test_export_and_export_again(call: Call, tmp_path: Path) -> None:
    """Files that only their owner reads; an earlier export is replaced."""
    pytest.importorskip("pyarrow", reason="pip install 'slurm-robust[parquet]' (scripts/setup --dev does)")
    for _ in range(2):
        done = call("export", str(tmp_path / "out"))
        assert done.exit_code == 0, done.output
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"facts.sqlite", "jobs.parquet", "attempts.parquet"} <= names
    assert not [name for name in names if name.startswith(".")]
    assert {oct((tmp_path / "out" / name).stat().st_mode)[-3:] for name in names} == {"600"}
    with sqlite3.connect(tmp_path / "out" / "facts.sqlite") as db:
        assert db.execute("SELECT count(*) FROM jobs").fetchone() == (1,)


def test_without_pyarrow_there_is_a_sentence(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note, or an error where Parquet was asked for."""

    def missing(*_: object) -> None:
        raise parquet.ParquetMissingError("Parquet needs pyarrow; type: pip install 'slurm-robust[parquet]'")

    monkeypatch.setattr(parquet, "write", missing)
    done = call("export", str(tmp_path / "out"))
    assert (done.exit_code, "No Parquet files: Parquet needs pyarrow" in done.stderr) == (0, True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["facts.sqlite"]
    assert call("export", "--format", "parquet", str(tmp_path / "out")).exit_code == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_leaves_no_half_file(call: Call, tmp_path: Path) -> None:
    """What is there stays; the message says where to look."""
    with mounted_tmpfs(tmp_path / "small", "64k") as small:
        (small / "facts.sqlite").write_text("earlier")
        done = call("export", str(small))
        assert done.exit_code == 1
        assert f"df -h {small}" in done.stderr
        assert [path.name for path in small.iterdir()] == ["facts.sqlite"]
        assert (small / "facts.sqlite").read_text() == "earlier"


def test_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ago, dates, zones; without a zone they are local."""
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    try:
        assert moment("2026-01-31T12:00", 0, "--since") == moment("2026-01-31T10:00Z", 0, "--since")
        assert moment("2026-01-31", 0, "--since") == moment("2026-01-30T22:00+00:00", 0, "--since")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [moment(text, 1e6, "--since") for text in ("now", "1m", "1h", "1d", "1w")] == [
        1e6,
        1e6 - 60,
        1e6 - 3600,
        1e6 - 86400,
        1e6 - 604800,
    ]


def test_a_time_to_come_ends_now(tmp_path: Path) -> None:
    """Shares of what the cluster had are not shares of what it will have."""
    soon, later = (time.strftime("%Y-%m-%d", time.localtime(time.time() + days * 86400)) for days in (2, 3))
    facts = load_facts(FactOptions("1d", soon, tmp_path, accounting=False, cluster="", config=None))
    assert facts.to_s == facts.read_at_s
    with pytest.raises(click.UsageError):
        load_facts(FactOptions(soon, later, tmp_path, accounting=False, cluster="", config=None))


@pytest.mark.parametrize("words", [("--since", "3x"), ("--since", "now"), ("--until", "99d"), ("--json", "--csv")])
def test_wrong_usage(call: Call, words: tuple[str, ...]) -> None:
    """Exit code 2, and what to type."""
    assert call("sql", *words, "SELECT 1").exit_code == 2


def test_a_row_of_many_columns_is_shown_one_below_the_other(call: Call) -> None:
    """No line is wider than the terminal, and no value is left out; a few columns stay a table."""
    done = call("sql", "SELECT a.*, b.* FROM jobs a, jobs b UNION ALL SELECT a.*, b.* FROM jobs a, jobs b")
    assert max(map(len, done.stdout.splitlines())) <= 200
    assert "row 2" in done.stdout
    assert "1:0" in done.stdout
    assert "row 1" not in call("sql", "SELECT job, state FROM jobs").stdout
