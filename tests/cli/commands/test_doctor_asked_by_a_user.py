"""`srobust doctor`, typed by somebody who is not the daemon's user, or where nothing shows who that is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.cli.commands.doctor import _own_jobs
from slurm_robust.config.site import Config, DaemonConfig
from slurm_robust.doctor.advice import Severity
from slurm_robust.slurm.admission import AdmissionClient, Association, PartitionRules


@pytest.mark.parametrize("folder", ["there", "missing"])
def test_a_user_is_told_that_the_daemons_jobs_cannot_be_tried(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm lets root alone try another one's job: that it refuses a user says nothing about the site."""
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    (found,) = _own_jobs({}, Config(daemon=DaemonConfig(state_dir=str(tmp_path / folder))), {})
    assert found.level is Severity.UNKNOWN
    assert found.sentence == "nobody cannot try the jobs of root, the daemon's user"


@pytest.mark.parametrize(
    ("folder", "level", "begins"),
    [
        ("there", Severity.WRONG, "partition gpu takes jobs"),
        ("missing", Severity.ADVICE, "if the daemon runs as root: "),
    ],
)
def test_a_node_does_not_know_the_daemons_user(
    folder: str, level: Severity, begins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site may run it as another one (security.md): what would be wrong for root is said as a condition there."""
    (tmp_path / "there").mkdir()
    partition = PartitionRules("gpu", accounts=frozenset(("ml",)))
    known = [Association("root", default=True)]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(AdmissionClient, "partitions", lambda _: [partition])
    monkeypatch.setattr(AdmissionClient, "associations", lambda *_: known)
    monkeypatch.setattr(AdmissionClient, "refusal", lambda *_: "")
    config, said = Config(daemon=DaemonConfig(state_dir=str(tmp_path / folder))), {"AccountingStorageEnforce": "qos"}
    (found,) = _own_jobs(said, config, {"n1": ("gpu",)})
    assert found.level is level
    assert found.sentence.startswith(begins)
