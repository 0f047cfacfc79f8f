"""`srobust status` beside a daemon that stands by."""

from __future__ import annotations

import json
import time
from pathlib import Path

from click.testing import CliRunner

from slurm_robust.cli.main import cli

STATE = {"at_s": 0.0, "cluster": "c1", "mode": "act", "breaker": {"open": False}, "nodes": [], "jobs": []}


def status(folder: Path, lease: dict[str, object]) -> str:
    """What is printed of a fresh state with this lease."""
    state = {**STATE, "at_s": time.time(), "standby": [], "incidents": [], "lease": lease}
    (folder / "state.json").write_text(json.dumps(state))
    config = folder / "robust.yaml"
    config.write_text(f"daemon: {{state_dir: {folder}}}\n")
    done = CliRunner().invoke(cli, ["status", "--config", str(config)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_it_says_who_acts_and_where_to_look(tmp_path: Path) -> None:
    """Nobody needs to do anything, but the jobs are shown on the other host."""
    shown = status(tmp_path, {"standing_by": True, "host": "ctl1"})
    assert "Nothing needs a person now." in shown
    assert "This daemon stands by, and does nothing; the daemon on ctl1 acts: type srobust status there." in shown
    assert "stands by" not in status(tmp_path, {"standing_by": False, "host": "ctl2"})
