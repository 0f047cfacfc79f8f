"""Runs one question in SQL about facts: it reads, and changes, loads and opens nothing; a deadline ends it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from slurm_robust.report import tables
from slurm_robust.report.facts import Facts

_MAY = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_NOT = frozenset({"load_extension", "fts3_tokenizer"})
"""Functions that reach into the program itself."""
_LIMIT_LENGTH, _VALUE_MAX_BYTES = 0, 16 << 20
"""SQLite's limit of one text or blob: a function that makes a gigabyte takes several, and no deadline ends it."""
_STEPS = 10_000
"""SQLite's own instructions between two looks at the clock: about a millisecond."""


class QueryError(Exception):
    """The question cannot be answered; SQLite's own message, and what to type next."""


@dataclass(frozen=True)
class QueryAnswer:
    """The answer to a question in SQL.

    Attributes:
        rows: Rows, read from the database as they are taken; a caller that does not take all rows closes them.
    """

    columns: tuple[str, ...]
    rows: Generator[tuple[Any, ...], None, None]


@contextmanager
def database(facts: Facts) -> Iterator[sqlite3.Connection]:
    """Put the facts into a database of their own, which is private to this process and ends with the block."""
    db = sqlite3.connect("")  # in memory, and in a file without a name as far as it is large
    try:
        try:
            tables.fill(db, facts)
        except sqlite3.Error as error:
            raise QueryError(
                f"the tables could not be written ({error}); is there space? df -h /tmp /var/tmp"
            ) from None
        db.set_authorizer(_allowed)
        if hasattr(db, "setlimit"):  # Python 3.11
            db.setlimit(_LIMIT_LENGTH, _VALUE_MAX_BYTES)
        yield db
    finally:
        db.close()


def _allowed(action: int, _first: str | None, second: str | None, _database: str | None, _inner: str | None) -> int:
    if action not in _MAY or (action == sqlite3.SQLITE_FUNCTION and second in _NOT):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def ask(db: sqlite3.Connection, query: str, timeout_s: float, clock_s: Callable[[], float]) -> QueryAnswer:
    """Return the answer to one SELECT.

    Raises:
        QueryError: it is wrong, is no SELECT, or took longer than `timeout_s`; also while the rows are taken.
    """
    deadline_s = clock_s() + timeout_s
    db.set_progress_handler(lambda: clock_s() > deadline_s, _STEPS)
    with _told(timeout_s):
        cursor = db.execute(query)
    if cursor.description is None:
        raise QueryError("this is no SELECT; tables and columns: srobust report sql")

    def rows() -> Generator[tuple[Any, ...], None, None]:
        with _told(timeout_s):
            yield from cursor

    return QueryAnswer(tuple(str(column[0]) for column in cursor.description), rows())


@contextmanager
def _told(timeout_s: float) -> Iterator[None]:
    try:
        yield
    # A text with two statements, or with a NUL, is no sqlite3.Error with every Python.
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        text = str(error).rstrip(".")
        if text == "interrupted":
            raise QueryError(f"it took longer than {timeout_s:g} s; ask for less, or give --timeout") from None
        if text.startswith(("not authorized", "access to")):
            text += ": only SELECT is possible here"
        raise QueryError(f"{text}; tables and columns: srobust report sql") from None
