"""A journal from before strikes had users is read: each strike gets the user of its incident."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from slurm_robust.core.training_time import Stop
from slurm_robust.daemon.store.attempt_ledger import AttemptLedger
from slurm_robust.daemon.store.journal import FILE_NAME, Journal
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.daemon.store.pair_ledger import PairLedger
from slurm_robust.daemon.store.schema import MIGRATIONS
from slurm_robust.policy.cluster.strikes import Strike, by_user

VERSION = 4
"""The last one without users."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal of that version, as it wrote it."""
    db = sqlite3.connect(tmp_path / FILE_NAME)
    for script in MIGRATIONS[:VERSION]:
        db.executescript(script)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute(
        "INSERT INTO incidents(key, id, job_id, job, user, lineage, cluster, restart, start_at_s, kind, mode, state, "
        "opened_at_s, verdict, times) VALUES('7.r0.5.i', 'i', 7, '7', 'ann', 'l', 'c', 0, 5, 'claim', 'act', 'closed', "
        "1.0, 'null', '{}')"
    )
    for key in ("7.r0.5.i", "forgotten"):
        db.execute("INSERT INTO strikes VALUES('n1', 7, 'l', 10.0, 'passed', ?)", (key,))
    db.execute(
        "INSERT INTO quarantines VALUES('n2', '7.r0.5.i', 7, 'l', 'hang', 1.0, 2, 3.0, 12, 4.0, 'recheck submitted')"
    )
    db.execute("INSERT INTO standby_checks(node, passed_at_s) VALUES('n3', 5.0)")
    db.commit()
    db.close()
    return tmp_path


def test_a_journal_that_an_older_daemon_still_writes_knows_no_trainings(folder: Path) -> None:
    """A report reads it as it is."""
    journal = Journal.open(folder, read_only=True)
    ledger = AttemptLedger(journal)
    assert (ledger.attempts(0, 1e12), ledger.pool_sizes(0, 1e12), ledger.cluster_sizes(0, 1e12)) == ([], [], [])
    assert ledger.stops(7, "ann", 0.0) == [Stop({}, 1.0)]
    journal.close()


def test_older_rows_are_read(folder: Path) -> None:
    """With the user where the incident is still known; a node under check stays so; nobody has met anybody."""
    journal = Journal.open(folder)
    ledger = NodeLedger(journal)
    assert ledger.strikes("n1", 0.0) == [Strike(7, "l", "ann"), Strike(7, "l")]
    assert by_user(ledger.strikes("n1", 0.0)) == {"ann": 1}
    (q,) = ledger.quarantines()
    assert (q.user, q.tries, q.recheck_job, q.accused, q.checked_at_s) == ("ann", 2, 12, "", None)
    assert (ledger.standby_checks()["n3"].passed_at_s, ledger.standby_checks()["n3"].met_at_s) == (5.0, 0.0)
    assert PairLedger(journal).open() == []
    journal.close()
    journal = Journal.open(folder)
    assert journal.db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS) > VERSION
    journal.close()
