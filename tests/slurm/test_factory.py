from __future__ import annotations

import sys

import pytest

from slurm_robust.config.site import SlurmConfig
from slurm_robust.slurm.commands import CommandClient
from slurm_robust.slurm.factory import connect


def test_commands_are_the_default() -> None:
    """Every site has them; nothing is asked of Slurm, so none need be here."""
    assert type(connect(SlurmConfig())) is CommandClient


def test_pyslurm_that_cannot_be_imported_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which package, which version, or which line of robust.yaml; not before it is needed, and no call fails by it."""
    monkeypatch.setitem(sys.modules, "pyslurm", None)
    client = connect(SlurmConfig(backend="pyslurm", bin_dir="/nowhere"))
    assert not caplog.records
    assert client.about().problem == "it is not installed here"
    assert "matches this Slurm's major.minor, or set slurm.backend: commands" in caplog.records[0].getMessage()
