"""The command that shows lemons: tables for people, JSON for the daemon and other tools."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_robust.cli.commands.report_lemons import lemons
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.policy.cluster.lemon_choice import named_lemons

DAY_S = 86400.0


@pytest.fixture
def site(tmp_path: Path) -> list[str]:
    """A journal of ninety days in which one node of sixty failed twenty times; the options that name it."""
    journal, rng, now_s = Journal.open(tmp_path), random.Random(1), time.time()
    for number in range(20):
        for node in ("bad", f"n{number}"):
            at_s = now_s - rng.uniform(1, 80) * DAY_S
            NodeLedger(journal).drained(node, at_s, "srobust: XID 79 \x1b[31m")
            NodeLedger(journal).drain_ended(node, at_s + 7200)
    journal.close()
    (tmp_path / "robust.yaml").write_text(f"daemon: {{state_dir: {tmp_path}}}\n")
    return ["--config", str(tmp_path / "robust.yaml"), "--nodes-from", "-"]


NAMES = "".join(f"n{number}\n" for number in range(59)) + "bad\n\x1b[2J\n=cmd\n"


def test_a_lemon_is_shown(site: list[str]) -> None:
    """With its reason, and what was compared; the daemon reads the same as JSON."""
    shown = CliRunner().invoke(lemons, site, input=NAMES)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("1 of 60 nodes fails more often than chance explains: bad.")
    assert "\x1b" not in shown.stdout
    printed = CliRunner().invoke(lemons, [*site, "--json"], input=NAMES)
    row = json.loads(printed.stdout)
    assert (row["nodes"], row["failures"]) == (60, 40.0)
    assert [lemon.node for lemon in named_lemons(printed.stdout.encode())] == ["bad"]


def test_no_lemon_is_a_sentence(site: list[str]) -> None:
    """And exit code 0: it is no error."""
    shown = CliRunner().invoke(lemons, [*site, "--since", "12h"], input=NAMES)
    assert shown.exit_code == 0
    assert "too few to compare them" in shown.stdout


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """No journal there."""
    shown = CliRunner().invoke(lemons, ["--journal", str(tmp_path / "nowhere")])
    assert shown.exit_code == 1
    assert "cannot be" in shown.stderr
    assert str(tmp_path / "nowhere") in shown.stderr
