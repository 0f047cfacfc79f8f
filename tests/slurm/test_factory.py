from __future__ import annotations

import sys

import pytest

from slurm_robust.config import SlurmConfig
from slurm_robust.slurm.commands import CommandClient
from slurm_robust.slurm.errors import SlurmMissingError
from slurm_robust.slurm.factory import connect


def test_commands_are_the_default() -> None:
    """Every site has them; nothing is asked of Slurm, so none need be here."""
    assert isinstance(connect(SlurmConfig()), CommandClient)


def test_pyslurm_that_cannot_be_imported_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which package, which version, or which line of robust.yaml."""
    monkeypatch.setitem(sys.modules, "pyslurm", None)
    with pytest.raises(SlurmMissingError, match=r"pyslurm.*matches.*slurm\.backend: commands"):
        connect(SlurmConfig(backend="pyslurm"))
