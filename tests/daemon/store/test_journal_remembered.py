"""What the journal remembers of its rows is what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine


def quarantine(node: str) -> Quarantine:
    """One, of a made-up job."""
    return Quarantine(node, "k", 7, "l", "hang", 1.0, 1.0)


def test_rows_are_read_again_after_a_change_by_anybody(tmp_path: Path) -> None:
    """By this daemon, and by another process."""
    journal, other = Journal.open(tmp_path), Journal.open(tmp_path)
    ours, theirs = NodeLedger(journal), NodeLedger(other)
    assert ours.quarantines() == []
    ours.quarantine(quarantine("n1"))
    assert [q.node for q in ours.quarantines()] == ["n1"]
    theirs.quarantine(quarantine("n2"))
    assert [q.node for q in ours.quarantines()] == ["n1", "n2"]
    ours.quarantines().clear()
    assert [q.node for q in ours.quarantines()] == ["n1", "n2"]
    for one in (journal, other):
        one.close()


def test_what_is_rolled_back_was_never_there(tmp_path: Path) -> None:
    """Rows that were read within a transaction that failed."""
    journal = Journal.open(tmp_path)
    ledger = NodeLedger(journal)

    def failing() -> None:
        with journal.transaction():
            ledger.quarantine(quarantine("n1"))
            assert [q.node for q in ledger.quarantines()] == ["n1"]
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        failing()
    assert ledger.quarantines() == []
    journal.close()
