"""`srobust status` of a daemon on another host: one that stands by, or whose clock is ahead."""

from __future__ import annotations

import json
import time
from pathlib import Path

from click.testing import CliRunner

from slurm_robust.cli.main import cli

STATE = {"at_s": 0.0, "cluster": "c1", "mode": "act", "breaker": {"open": False}, "nodes": [], "jobs": []}


def status(folder: Path, lease: dict[str, object], ahead_s: float = 0.0) -> str:
    """What is printed of a fresh state with this lease."""
    state = {**STATE, "at_s": time.time() + ahead_s, "standby": [], "incidents": [], "lease": lease}
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


def test_a_state_from_the_future_says_whose_clock_is_wrong(tmp_path: Path) -> None:
    """No negative age is shown; below five seconds it is nobody's business."""
    shown = status(tmp_path, {}, ahead_s=119.5)
    assert "The clock of this host is 1 min 59 s behind that of the daemon's host: timedatectl" in shown
    assert "as of 0.0 s ago" in shown
    assert "clock" not in status(tmp_path, {}, ahead_s=2.0)
