"""`srobust status` as the owner of jobs, where the names of others' jobs and their users are hidden."""

from __future__ import annotations

import getpass
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_slurm import FakeSlurm

from slurm_robust.cli.main import cli
from slurm_robust.slurm.errors import SlurmError

BESIDE = {"cluster": "c1", "mode": "act", "breaker": {"open": False}, "nodes": [], "standby": []}
TRAINS = {"nodes": "n1", "restart_count": 0, "step": 3, "claim": "watching", "incident": "", "suspected_at_s": None}
HIDDEN = {"user": "hidden", "name": "hidden"}


def status(folder: Path, monkeypatch: pytest.MonkeyPatch, slurm: FakeSlurm) -> list[dict[str, object]]:
    """The jobs and incidents that are shown."""
    monkeypatch.setattr("slurm_robust.slurm.factory.connect", lambda _: slurm)
    jobs = [{"job": number, **TRAINS, **HIDDEN} for number in ("1", "2")]
    incidents = [{"job": "1", "user": "hidden", "id": "i", "state": "closed", "outcome": "resumed"}]
    state = {**BESIDE, "at_s": time.time(), "jobs": jobs, "incidents": incidents, "hidden": ["jobs", "users"]}
    (folder / "state.json").write_text(json.dumps(state))
    config = folder / "robust.yaml"
    config.write_text(f"daemon: {{state_dir: {folder}}}\n")
    done = CliRunner().invoke(cli, ["status", "--json", "--config", str(config)])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    return [*shown["jobs"], *shown["incidents"]]


def test_own_jobs_have_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm tells them to their owner; those of others stay hidden, also where Slurm would tell them."""
    slurm, me = FakeSlurm(), getpass.getuser()
    slurm.run_job(("n1",), user=me, name="mine")
    slurm.run_job(("n2",), user="somebody-else", name="theirs")
    mine, other, incident = status(tmp_path, monkeypatch, slurm)
    assert (mine["user"], mine["name"]) == (me, "mine")
    assert (other["user"], other["name"]) == ("hidden", "hidden")
    assert incident["user"] == me


def test_a_slurm_that_does_not_answer_costs_only_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is shown."""
    slurm = FakeSlurm()

    def refuses() -> None:
        raise SlurmError("read jobs", "away")

    monkeypatch.setattr(slurm, "jobs", refuses)
    assert {row["user"] for row in status(tmp_path, monkeypatch, slurm)} == {"hidden"}
