"""`srobust status` of a job that tells no progress and whose stacks stand still."""

from __future__ import annotations

import json
import time
from pathlib import Path

from click.testing import CliRunner

from slurm_robust.cli.main import cli

JOB = {"job": "7", "user": "ann", "name": "train", "nodes": "n[1-2]", "restart_count": 0, "step": -1, "incident": ""}
STILL = {"claim": "watching", "suspected_at_s": None, "still": "rank 0 in all_reduce, rank 1 in main (serve.py:7)"}


def test_a_standstill_is_named_and_alarms_nobody(tmp_path: Path) -> None:
    """Its time, where the ranks stand, and what to type; it may be healthy, so that nobody is needed."""
    now_s = time.time()
    job = {**JOB, **STILL, "still_since_s": now_s - 401}
    state = {"cluster": "c1", "mode": "act", "breaker": {"open": False}, "nodes": [], "standby": [], "incidents": []}
    (tmp_path / "state.json").write_text(json.dumps({**state, "at_s": now_s, "jobs": [job]}))
    config = tmp_path / "robust.yaml"
    config.write_text(f"daemon: {{state_dir: {tmp_path}}}\n")
    shown = CliRunner().invoke(cli, ["status", "--config", str(config)])
    text = " ".join(shown.output.split())
    assert "Nothing needs a person now." in text
    assert "Job 7 tells no progress, and its stacks have stood still for 6 min 4" in text
    assert " s; it may be healthy. Rank 0" in text
    assert "Rank 0 in all_reduce, rank 1 in main (serve.py:7): srobust stacks 7" in text
