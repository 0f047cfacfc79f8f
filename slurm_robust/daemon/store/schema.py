"""Defines the journal's tables, and the steps that bring an older file to the newest version."""

from __future__ import annotations

import sqlite3

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE incidents(
        key TEXT PRIMARY KEY,           -- attempt and incident: incident names are the job's own choice
        id TEXT NOT NULL,
        job_id INTEGER NOT NULL, job TEXT NOT NULL, user TEXT NOT NULL, lineage TEXT NOT NULL,
        cluster TEXT NOT NULL, restart INTEGER NOT NULL, start_at_s INTEGER NOT NULL,
        kind TEXT NOT NULL, mode TEXT NOT NULL,
        state TEXT NOT NULL,            -- open, running, closed
        outcome TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '',
        opened_at_s REAL NOT NULL, closed_at_s REAL,
        verdict TEXT NOT NULL, recovery TEXT, times TEXT NOT NULL, report TEXT NOT NULL DEFAULT '',
        seat INTEGER NOT NULL DEFAULT 0, abort TEXT NOT NULL DEFAULT '');
    CREATE INDEX incidents_by_job ON incidents(job_id, id);
    CREATE INDEX incidents_by_time ON incidents(opened_at_s);
    CREATE TABLE actions(
        incident TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, target TEXT NOT NULL,
        reason TEXT NOT NULL, args TEXT NOT NULL, planned INTEGER NOT NULL,
        calls INTEGER NOT NULL DEFAULT 0, called_at_s REAL, done_at_s REAL, error TEXT NOT NULL DEFAULT '',
        PRIMARY KEY(incident, seq));
    CREATE TABLE quarantines(
        node TEXT PRIMARY KEY, incident TEXT NOT NULL, job_id INTEGER NOT NULL, lineage TEXT NOT NULL,
        why TEXT NOT NULL, since_s REAL NOT NULL, tries INTEGER NOT NULL DEFAULT 0, next_try_at_s REAL NOT NULL,
        recheck_job INTEGER, recheck_at_s REAL, word TEXT NOT NULL DEFAULT '');
    CREATE TABLE strikes(
        node TEXT NOT NULL, job_id INTEGER NOT NULL, lineage TEXT NOT NULL, at_s REAL NOT NULL,
        why TEXT NOT NULL, incident TEXT NOT NULL);
    CREATE INDEX strikes_by_node ON strikes(node, at_s);
    CREATE TABLE drains(node TEXT NOT NULL, at_s REAL NOT NULL, reason TEXT NOT NULL, ended_at_s REAL);
    CREATE TABLE events(at_s REAL NOT NULL, level TEXT NOT NULL, what TEXT NOT NULL, text TEXT NOT NULL);
    CREATE TABLE kv(key TEXT PRIMARY KEY, value TEXT NOT NULL);
    """,
    """
    CREATE TABLE standby_checks(
        node TEXT PRIMARY KEY, job_id INTEGER, begun_at_s REAL NOT NULL DEFAULT 0, ended_at_s REAL NOT NULL DEFAULT 0,
        passed_at_s REAL NOT NULL DEFAULT 0, tries INTEGER NOT NULL DEFAULT 0, next_try_at_s REAL NOT NULL DEFAULT 0,
        word TEXT NOT NULL DEFAULT '');
    """,
    """
    ALTER TABLE incidents ADD COLUMN plan TEXT;     -- a model.Plan; `verdict` is a model.Verdict from now on
    ALTER TABLE incidents ADD COLUMN confidence REAL NOT NULL DEFAULT 0;
    ALTER TABLE incidents ADD COLUMN step INTEGER NOT NULL DEFAULT -1;
    ALTER TABLE incidents ADD COLUMN claimed_at_s REAL NOT NULL DEFAULT 0;
    CREATE INDEX incidents_unfinished ON incidents(opened_at_s) WHERE state != 'closed';
    """,
    """
    CREATE TABLE repairs(
        number INTEGER PRIMARY KEY, node TEXT NOT NULL, remedy TEXT NOT NULL, nth INTEGER NOT NULL,
        drained_as TEXT NOT NULL, begun_at_s REAL NOT NULL, boot_at_s INTEGER NOT NULL DEFAULT 0,
        acted_at_s REAL, asked_at_s REAL, done_at_s REAL, checked_at_s REAL,
        outcome TEXT NOT NULL DEFAULT '', why TEXT NOT NULL DEFAULT '', ended_at_s REAL);
    CREATE INDEX repairs_by_node ON repairs(node);
    """,
    """
    ALTER TABLE strikes ADD COLUMN user TEXT NOT NULL DEFAULT '';           -- of the job; empty if unknown
    ALTER TABLE strikes ADD COLUMN failed_test TEXT NOT NULL DEFAULT '';    -- empty: it rests on a claim alone
    UPDATE strikes SET user = coalesce((SELECT user FROM incidents WHERE incidents.key = strikes.incident), '');
    ALTER TABLE quarantines ADD COLUMN user TEXT NOT NULL DEFAULT '';
    ALTER TABLE quarantines ADD COLUMN accused TEXT NOT NULL DEFAULT '';    -- the test as whose partner it got here
    ALTER TABLE quarantines ADD COLUMN checked_at_s REAL;                   -- when it passed its full check
    UPDATE quarantines SET user = coalesce((SELECT user FROM incidents WHERE incidents.key = quarantines.incident), '');
    ALTER TABLE standby_checks ADD COLUMN met_at_s REAL NOT NULL DEFAULT 0; -- when it was tested with another node
    CREATE TABLE pair_tests(
        number INTEGER PRIMARY KEY, node TEXT NOT NULL, partner TEXT NOT NULL, purpose TEXT NOT NULL,
        key TEXT NOT NULL, reservation TEXT NOT NULL, begun_at_s REAL NOT NULL, job_id INTEGER, ended_at_s REAL,
        result TEXT NOT NULL DEFAULT '', failed TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '');
    """,
    """
    CREATE TABLE attempts(
        job_id INTEGER NOT NULL, restart INTEGER NOT NULL, run_at_s INTEGER NOT NULL, lineage TEXT NOT NULL,
        cluster TEXT NOT NULL, job TEXT NOT NULL, user TEXT NOT NULL, name TEXT NOT NULL, partition TEXT NOT NULL,
        nodes TEXT NOT NULL,                -- folded
        node_count INTEGER NOT NULL, gpus INTEGER NOT NULL,
        eligible_at_s REAL NOT NULL, start_at_s REAL NOT NULL, first_step_at_s REAL, first_new_step_at_s REAL,
        last_step_at_s REAL, seen_at_s REAL NOT NULL, end_at_s REAL,
        resume_step INTEGER NOT NULL, last_step INTEGER NOT NULL,
        checkpoint_s REAL NOT NULL, slow_s REAL NOT NULL, step_s REAL NOT NULL, report_every_s REAL NOT NULL,
        restarts_within TEXT NOT NULL,      -- JSON: pairs of the first step and the first new step
        state TEXT NOT NULL DEFAULT '',
        PRIMARY KEY(job_id, restart, run_at_s, lineage));
    CREATE INDEX attempts_by_time ON attempts(seen_at_s);
    CREATE INDEX attempts_open ON attempts(job_id) WHERE state IN ('', 'DONE');
    CREATE TABLE pool_sizes(
        at_s REAL NOT NULL, pool TEXT NOT NULL, partition TEXT NOT NULL, wanted INTEGER NOT NULL,
        nodes TEXT NOT NULL);               -- folded
    CREATE TABLE cluster_sizes(at_s REAL NOT NULL, gres TEXT NOT NULL, nodes INTEGER NOT NULL, gpus INTEGER NOT NULL);
    """,
    """
    ALTER TABLE incidents ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;    -- in the totals: 1 its beginning, 2 its end
    CREATE INDEX incidents_uncounted ON incidents(opened_at_s) WHERE counted < 2;
    """,
    """
    ALTER TABLE quarantines ADD COLUMN soaked INTEGER NOT NULL DEFAULT 0;   -- rounds that it passed
    ALTER TABLE attempts ADD COLUMN unwatched TEXT NOT NULL DEFAULT '[]';   -- JSON: pairs of begin and end
    """,
)
"""Step n brings a file from version n to n + 1. A step that was released is never changed, only followed by others."""


class JournalError(Exception):
    """The journal cannot be used; says which file, why, and what to do."""


def migrate(db: sqlite3.Connection, name: str) -> None:
    """Bring an opened file to the newest version, in one transaction a step.

    Raises:
        JournalError: the file was written by a newer version.
    """
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise JournalError(
            f"{name}: journal version {version} is newer than this program's {len(MIGRATIONS)}; "
            "install the newer slurm_robust again, or move the file away"
        )
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        db.executescript(f"BEGIN IMMEDIATE;{script};PRAGMA user_version = {number};COMMIT;")
