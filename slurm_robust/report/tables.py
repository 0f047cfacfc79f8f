"""Facts as tables that anyone can query: SQLite, with views that answer questions (`parquet` writes the same tables).

A table is named as its rows among the facts, a column as the field; `columns` has the meaning of each. Lists of nodes
are JSON: `json_each` unfolds them. Times are seconds since the epoch.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from slurm_robust.core.model import TIME_KEYS
from slurm_robust.core.training_time import TrainingAttempt
from slurm_robust.daemon.store import attempt_ledger
from slurm_robust.report import facts as rows
from slurm_robust.report.facts import Facts
from slurm_robust.report.table_texts import MEANINGS, VIEWS

STAMPS = ("accepted", *TIME_KEYS[:-1], "first_step", TIME_KEYS[-1])
"""Keys of an incident's times; each is a column of its own, `fault_at_s`."""
_PAIRS = "tuple[tuple[float, float | None], ...]"
_SQL = {"str": "TEXT", "int": "INTEGER", "bool": "INTEGER", "float": "REAL", "tuple[str, ...]": "TEXT", _PAIRS: "TEXT"}


@dataclasses.dataclass(frozen=True)
class FactColumn:
    """One column.

    Attributes:
        kind: The field's type, as in `facts`: `str`, `int`, `float`, `bool`, `tuple[str, ...]`, pairs of times.
        value: Takes the column's value from a row.
    """

    name: str
    kind: str
    meaning: str
    value: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class FactTable:
    """One table of the facts, with the name of their field."""

    name: str
    columns: tuple[FactColumn, ...]

    def rows(self, facts: Facts) -> Iterable[Any]:
        """Return the table's rows from the facts."""
        found: Iterable[Any] = getattr(facts, self.name)
        return found


def _field(name: str) -> Callable[[Any], Any]:
    return lambda row: getattr(row, name)


def _inner(outer: str, name: str) -> Callable[[Any], Any]:
    return lambda row: getattr(getattr(row, outer), name)


def _stamp(key: str) -> Callable[[Any], Any]:
    return lambda row: row.times.get(key)


def _columns(table: str, row: type) -> Iterator[FactColumn]:
    def column(name: str, kind: object, value: Callable[[Any], Any]) -> FactColumn:
        meaning = MEANINGS.get(f"{table}.{name}") or MEANINGS.get(name, "")
        return FactColumn(name, str(kind).removesuffix(" | None"), meaning, value)

    for field in dataclasses.fields(row):
        if field.type == "TrainingAttempt":
            for inner in dataclasses.fields(TrainingAttempt):
                # The attempt itself has the nodes' names under this name.
                name = "node_count" if inner.name == "nodes" else inner.name
                yield column(name, inner.type, _inner(field.name, inner.name))
        elif str(field.type).startswith("Mapping"):
            for key in STAMPS:
                yield column(f"{key}_at_s", "float", _stamp(key))
        else:
            yield column(field.name, field.type, _field(field.name))


TABLES = tuple(
    FactTable(name, tuple(_columns(name, row)))
    for name, row in (
        ("attempts", attempt_ledger.SupervisedAttempt),
        ("incidents", rows.ClosedIncident),
        ("actions", rows.TakenAction),
        ("drains", rows.NodeDrain),
        ("strikes", rows.NodeStrike),
        ("repairs", rows.NodeRepair),
        ("pools", attempt_ledger.PoolSize),
        ("sizes", attempt_ledger.ClusterSize),
        ("jobs", rows.RanJob),
    )
)


def fill(db: sqlite3.Connection, facts: Facts) -> None:
    """Write the facts into an empty database: tables, views, `columns`, `doubts`, and `about`."""
    with db:
        for table in TABLES:
            lines = ", ".join(f'"{column.name}" {_SQL[column.kind]}' for column in table.columns)
            db.execute(f'CREATE TABLE "{table.name}" ({lines})')
            marks = ", ".join("?" for _ in table.columns)
            insert = f'INSERT INTO "{table.name}" VALUES ({marks})'  # noqa: S608 (our own names)
            db.executemany(insert, _sqlite_rows(table, facts))
        db.execute("CREATE TABLE about (cluster TEXT, from_s REAL, to_s REAL, read_at_s REAL)")
        db.execute("INSERT INTO about VALUES (?, ?, ?, ?)", (facts.cluster, facts.from_s, facts.to_s, facts.read_at_s))
        db.execute("CREATE TABLE doubts (text TEXT)")
        db.executemany("INSERT INTO doubts VALUES (?)", ((plain_text(doubt),) for doubt in facts.doubts))
        db.execute('CREATE TABLE columns ("table" TEXT, "column" TEXT, type TEXT, meaning TEXT)')
        for name, view in VIEWS.items():
            db.execute(f'CREATE VIEW "{name}" AS {view.sql}')
        db.executemany("INSERT INTO columns VALUES (?, ?, ?, ?)", _described(db))


def _described(db: sqlite3.Connection) -> list[tuple[str, str, str, str]]:
    """Return the meaning of each column of the tables and views."""
    found = [(t.name, c.name, _SQL[c.kind], c.meaning) for t in TABLES for c in t.columns]
    for name in ("about", "doubts", *VIEWS):
        for row in db.execute(f'PRAGMA table_info("{name}")'):
            own = VIEWS[name].meanings if name in VIEWS else {}
            meaning = own.get(row[1]) or MEANINGS.get(f"{name}.{row[1]}") or MEANINGS.get(row[1], "")
            found.append((name, row[1], row[2], meaning))
    return found


def _sqlite_rows(table: FactTable, facts: Facts) -> Iterator[tuple[Any, ...]]:
    takes = [(column.value, _IN_SQLITE.get(column.kind)) for column in table.columns]
    for row in table.rows(facts):
        yield tuple(into(value(row)) if into else value(row) for value, into in takes)


def plain_text(text: str) -> str:
    """Texts come from outside: half of a character pair cannot be written."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@lru_cache(maxsize=100_000)
def _as_json(values: tuple[object, ...]) -> str:
    return json.dumps(values)


_IN_SQLITE: Mapping[str, Callable[[Any], Any]] = {
    "str": plain_text,
    "tuple[str, ...]": _as_json,
    _PAIRS: _as_json,
    "bool": int,
}
