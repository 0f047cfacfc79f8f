"""`srobust report sql` and `srobust report export`: the facts of a cluster's past, for questions of one's own."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from slurm_robust.cli.csv_output import print_csv
from slurm_robust.cli.report_source import FactOptions, fact_options, load_facts, show_doubts
from slurm_robust.cli.state import print_json
from slurm_robust.cli.table import bold, entry, render, table, width
from slurm_robust.cli.teaching import lesson
from slurm_robust.report import parquet, query, tables
from slurm_robust.report.facts import Facts
from slurm_robust.report.query import QueryAnswer, QueryError
from slurm_robust.report.table_texts import VIEWS

_SHOWN = 1000
"""Rows of a table for people."""
_JSON_MAX = 1_000_000
"""Rows of one JSON object, which is made as a whole; CSV is written row by row."""
_EXITS = ((0, "shown"), (1, "the question or a file failed; the message says why"), (2, "wrong usage"))
_LIST = ("srobust report sql", "all tables, views and columns")
_NODES = ('srobust report sql "SELECT * FROM node_failures"', "which nodes fail again and again")
_SPREADSHEET = ('srobust report sql --csv "SELECT * FROM jobs" > jobs.csv', "for a spreadsheet")
_EXPORT = ("srobust report export --since 30d facts/", "facts/facts.sqlite, and a Parquet file for each table")


@click.command(epilog=lesson([_LIST, _NODES, _SPREADSHEET], _EXITS))
@click.argument("question", metavar="[SELECT…]", default="")
@fact_options
@click.option("--json", "as_json", is_flag=True, help="For tools: documented, stable.")
@click.option("--csv", "as_csv", is_flag=True, help="For spreadsheets; no text in it runs as a formula.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="Seconds that the question may take.",
)
def sql(*, question: str, source: FactOptions, as_json: bool, as_csv: bool, timeout_s: int) -> None:
    """Ask the cluster's past a question in SQL (SQLite's).

    The facts are read anew, from the daemon's journal, the incidents' folders and Slurm's accounting, into a database
    that only this question sees. It can read, and nothing else. Without a question, tables and columns are listed.
    What may be wrong with the facts stands in the table `doubts`, and on stderr.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    # What tables there are does not depend on the facts.
    facts = load_facts(source) if question else Facts(0, 0, 0)
    show_doubts(facts)
    try:
        with query.database(facts) as db:
            asked = question or 'SELECT "table", "column", type, meaning FROM columns'
            answer = query.ask(db, asked, timeout_s, time.monotonic)
            if as_json:
                rows = _rows_of_json(answer)
                print_json({"version": 1, "columns": answer.columns, "rows": rows, "doubts": facts.doubts})
            elif as_csv:
                print_csv(answer.columns, answer.rows)
            elif question:
                _print_rows(answer)
            else:
                _print_tables(list(answer.rows))
    except QueryError as error:
        raise click.ClickException(str(error)) from None


def _rows_of_json(answer: QueryAnswer) -> list[list[object]]:
    with contextlib.closing(answer.rows) as taken:
        rows = [[_number(value) for value in row] for row in itertools.islice(taken, _JSON_MAX + 1)]
    if len(rows) > _JSON_MAX:
        raise QueryError(f"these are more than {_JSON_MAX:,} rows; ask for less, or type --csv")
    return rows


def _number(value: object) -> object:
    """Return a value for JSON, which has no infinity, and no bytes."""
    if isinstance(value, bytes):
        return value.hex()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print_rows(answer: QueryAnswer) -> None:
    with contextlib.closing(answer.rows) as taken:
        rows = list(itertools.islice(taken, _SHOWN + 1))
    count = min(len(rows), _SHOWN)
    title = f"{count} {'row' if count == 1 else 'rows'}"
    lines = render(answer.columns, rows[:_SHOWN], columns_wide=width()) if rows else ["none"]
    if max(len(click.unstyle(line)) for line in lines) > width():
        # More columns than a line holds: one below the other.
        wide = max(map(len, answer.columns)) + 1
        lines = []
        for number, row in enumerate(rows[:_SHOWN], start=1):
            lines.append(bold(f"row {number}"))
            for column, value in zip(answer.columns, row, strict=True):
                lines += entry(column, value, label_wide=wide)
    click.echo("\n".join([bold(title), *lines]))
    if len(rows) > _SHOWN:
        click.echo(f"There are more than {_SHOWN} rows; all of them: --csv or --json")


def _print_tables(columns: Sequence[tuple[Any, ...]]) -> None:
    for name, of_it in itertools.groupby(columns, key=lambda row: str(row[0])):
        question = f": {VIEWS[name].question}" if name in VIEWS else ""
        table(f"{name}{question}", ("column", "type", "meaning"), [row[1:] for row in of_it], drop=("type",))
        click.echo()
    click.echo("Times are seconds since the epoch: datetime(start_at_s, 'unixepoch', 'localtime')")


@click.command(epilog=lesson([_EXPORT], _EXITS))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@fact_options
@click.option(
    "--format",
    "formats",
    type=click.Choice(["sqlite", "parquet"]),
    multiple=True,
    help="Both by default; Parquet where pyarrow is installed.",
)
def export(*, folder: Path, source: FactOptions, formats: tuple[str, ...]) -> None:
    """Write the facts into DIR, for tools of your own: facts.sqlite, and a Parquet file for each table.

    Files of an earlier export are replaced, each at once. They have the names of users and jobs, so only you can read
    them.
    """
    facts = load_facts(source)
    show_doubts(facts)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if "sqlite" in formats or not formats:
            _write_sqlite(folder, facts)
        if "parquet" in formats or not formats:
            _write_parquet(folder, facts, asked=bool(formats))
    except (OSError, sqlite3.Error) as error:
        raise click.ClickException(f"{folder}: the files could not be written: {error}; df -h {folder}") from None


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Make a folder beside the files, from which they are moved to their place when all are whole."""
    new = folder / f".new-{os.getpid()}"
    new.mkdir(mode=0o700)
    try:
        yield new
        for path in sorted(new.iterdir()):
            path.chmod(0o600)
            path.replace(folder / path.name)
            click.echo(folder / path.name)
    finally:
        for path in new.iterdir():
            path.unlink()
        new.rmdir()


def _write_sqlite(folder: Path, facts: Facts) -> None:
    with _new_folder(folder) as new, contextlib.closing(sqlite3.connect(new / "facts.sqlite")) as db:
        tables.fill(db, facts)


def _write_parquet(folder: Path, facts: Facts, *, asked: bool) -> None:
    try:
        with _new_folder(folder) as new:
            parquet.write(new, facts)
    except parquet.ParquetMissingError as error:
        if asked:
            raise click.ClickException(str(error)) from None
        click.echo(f"No Parquet files: {error}", err=True)
