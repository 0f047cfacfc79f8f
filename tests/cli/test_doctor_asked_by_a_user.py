"""`srobust doctor`, typed by somebody who is neither root nor the daemon's user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.cli.commands.doctor import _own_jobs
from slurm_robust.config.site import Config, DaemonConfig
from slurm_robust.doctor.advice import Severity


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
