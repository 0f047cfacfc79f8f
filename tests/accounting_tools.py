"""Tests that need a devcluster's accounting."""

from __future__ import annotations

import pytest
from helpers import slurm_required

from slurm_robust.devcluster import accounting, machine
from slurm_robust.devcluster.spec import DevClusterError


def need_accounting() -> None:
    """Skip where slurmdbd or MariaDB is missing; fail where they are required."""
    try:
        for name in accounting.COMMANDS:
            machine.command(name)
    except DevClusterError as error:
        message = f"{error} (scripts/setup --dev does)"
        if slurm_required():
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
