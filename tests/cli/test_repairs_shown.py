"""Repairs under way, in `srobust status` and `srobust nodes`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.cli.commands.nodes import repair
from slurm_robust.cli.main import cli
from slurm_robust.config.site import parse
from slurm_robust.core.model import Mode
from slurm_robust.daemon.api.state_lines import encode
from slurm_robust.daemon.api.state_snapshot import write
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.service import Daemon
from slurm_robust.daemon.store.journal import Journal


def test_a_repair_under_way_is_shown_with_its_try(tmp_path: Path) -> None:
    """Which try of how many, what happens now, since when, and why the node was drained; nobody is needed for it."""
    slurm = FakeSlurm()
    slurm.drain("n2", "srobust: XID 79 (GPU has fallen off the bus) [repair reboot]")
    journal = Journal.open(tmp_path / "state")
    config = parse("repair: {enabled: true, wait_s: 0}")
    daemon = Daemon(DaemonContext(config, slurm, journal, account="root", mode=Mode.ACT, clock=lambda: slurm.now_s))

    async def story() -> None:
        for _ in range(20):
            slurm.pass_s(1)
            await daemon._poll()

    asyncio.run(story())
    write(tmp_path / "state", encode({**published(daemon), "at_s": 4e9}))
    journal.close()
    site = tmp_path / "robust.yaml"
    site.write_text(f"daemon: {{state_dir: {tmp_path}/state, http: {{port: 1}}}}\n")

    def typed(*words: str) -> str:
        return " ".join(CliRunner().invoke(cli, [*words, "--config", str(site)]).output.split())

    nodes = {n["name"]: n for n in json.loads(typed("nodes", "--json"))}
    told = {key: value for key, value in nodes["n2"]["repair"].items() if key != "since_s"}
    evidence = "XID 79 (GPU has fallen off the bus)"
    assert told == {"remedy": "reboot", "try": 1, "of": 2, "doing": "rebooting", "evidence": evidence}
    assert nodes["n3"]["repair"] is None
    assert repair(nodes["n2"]).startswith("repair, try 1 of 2 (reboot): rebooting since ")
    assert "repair, try 1 of 2 (reboot): rebooting" in typed("nodes")
    status = typed("status")
    assert "Repairs" in status
    assert "to be repaired" not in status
