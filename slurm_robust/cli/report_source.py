"""Stand-in for the reader of facts until it is merged: take the other side of this file. It reads nodes' rows alone."""

from __future__ import annotations

import sqlite3
import time

import click

from slurm_robust.cli.standby_history import seconds_of
from slurm_robust.config import Config
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.schema import JournalError
from slurm_robust.report.facts import Facts, NodeDrain, NodeStrike


def facts_from_options(config: Config, since: str, journal_dir: str | None = None) -> Facts:
    """The drains and strikes of that time, from the daemon's journal."""
    now_s = time.time()
    from_s = now_s - seconds_of(since)
    try:
        journal = Journal.open(journal_dir or config.daemon.state_dir, read_only=True)
        drains = journal.db.execute("SELECT * FROM drains WHERE at_s >= ?", (from_s,)).fetchall()
        strikes = journal.db.execute("SELECT * FROM strikes WHERE at_s >= ?", (from_s,)).fetchall()
    except (JournalError, sqlite3.Error) as error:
        raise click.ClickException(f"{error}\nThe journal is on the daemon's machine, and root's: type sudo") from None
    journal.close()
    return Facts(
        *(from_s, now_s, now_s),
        drains=tuple(NodeDrain(r["node"], r["at_s"], r["reason"], r["ended_at_s"]) for r in drains),
        strikes=tuple(
            NodeStrike(*(r[k] for k in ("node", "at_s", "job_id", "lineage", "user", "incident", "why", "failed_test")))
            for r in strikes
        ),
    )
