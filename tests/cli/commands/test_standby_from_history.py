"""`srobust standby size --from-history`: of a journal and a simulated Slurm."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_slurm import FakeSlurm

from slurm_robust.cli import standby_history
from slurm_robust.cli.commands.standby import command
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.node_ledger import NodeLedger

DAY_S = 86400.0


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of ten days in which a node was drained three times; returns its robust.yaml."""
    monkeypatch.setattr(standby_history, "connect", lambda config: FakeSlurm())
    path = tmp_path / "robust.yaml"
    path.write_text(f"daemon: {{state_dir: {tmp_path}}}\n")
    return path


def run(*argv: str) -> Result:
    """The command as it is typed."""
    return CliRunner().invoke(command, ["size", *argv])


def test_failures_of_the_journal_give_a_size(site: Path) -> None:
    """A row for each class, for people and for tools; the window is the journal's where that is younger."""
    journal, now_s = Journal.open(site.parent), time.time()
    journal.event(now_s - 10 * DAY_S, "info", "daemon.start", "x")
    for days in (1, 2, 3):
        NodeLedger(journal).drained("n1", now_s - days * DAY_S, "srobust: XID 79")
    journal.close()
    result = run("--from-history", "--since", "60d", "--config", str(site), "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert (row["failures"], row["machines"]) == (3, len(FakeSlurm().state.nodes))
    assert row["node_days"] == pytest.approx(10 * row["machines"], rel=1e-3)
    assert row["standby_low"] <= row["standby"] <= row["standby_high"]
    shown = run("--from-history", "--since", "2d", "--config", str(site))
    assert "1 failure in" in shown.stdout


def test_an_empty_journal_says_that_nothing_was_seen(site: Path) -> None:
    """A dash, no zero."""
    Journal.open(site.parent).close()
    result = run("--from-history", "--config", str(site))
    assert result.exit_code == 0, result.output
    assert "no node-day was seen yet" in result.stdout


def test_what_cannot_be_read_is_said(site: Path) -> None:
    """No journal, no such time, options that contradict each other."""
    missing = run("--from-history", "--config", str(site))
    assert missing.exit_code == 1
    assert "type sudo" in missing.output
    assert run("--from-history", "--since", "soon", "--config", str(site)).exit_code == 2
    assert run("--from-history", "--machines", "4").exit_code == 2
    assert run("--machines", "4").exit_code == 2
