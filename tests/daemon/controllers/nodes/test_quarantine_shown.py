"""What `srobust nodes` and `srobust status` show of a quarantine, and of strikes by user."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.cli.commands.nodes import strikes
from slurm_robust.cli.main import cli
from slurm_robust.config.site import parse
from slurm_robust.daemon.api.state_lines import encode
from slurm_robust.daemon.api.state_snapshot import write
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        ({"strikes": 0, "strikes_by_user": {}}, ""),
        ({"strikes": 3, "strikes_by_user": {"ann": 2, "ben": 1}}, "3 (ann 2, ben 1)"),
        ({"strikes": 2}, "2"),
    ],
)
def test_strikes_are_shown_by_user(node: dict[str, object], shown: str) -> None:
    """An older daemon's state has no users."""
    assert strikes(node) == shown


def test_what_a_suspect_waits_for_is_shown(tmp_path: Path) -> None:
    """Two jobs of ann suspect n1, and n2 has a job."""
    slurm = FakeSlurm(2)
    slurm.run_job(("n2",))
    world = World(tmp_path / "state", slurm, parse("breaker: {max_partition_share: 1.0}"))
    ledger, now_s = NodeLedger(world.journal), slurm.now_s
    ledger.strike(Quarantine("n1", "a", 8, "l8", "hang", now_s, now_s, user="ann"), now_s, "passed")
    ledger.quarantine(Quarantine("n1", "b", 9, "l9", "hang", now_s, now_s, user="ann"))
    world.run(30)
    write(tmp_path / "state", encode(published(world.daemon)))
    world.journal.close()
    config = tmp_path / "robust.yaml"
    config.write_text(f"daemon: {{state_dir: {tmp_path}/state}}\n")
    env = {"SROBUST_CONFIG": str(config), "COLUMNS": "200"}
    for command in ("nodes", "status"):
        done = CliRunner().invoke(cli, [command], env=env)
        text = " ".join(done.output.split())
        assert "2 jobs suspected it, and its full check passed: it waits for a free node" in text, command
    assert "1 (ann 1)" in CliRunner().invoke(cli, ["nodes"], env=env).output
