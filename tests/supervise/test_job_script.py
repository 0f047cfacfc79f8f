"""What a batch script asks Slurm for, read from its text."""

from __future__ import annotations

import pytest

from slurm_robust.supervise.job import asks_no_kill


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("#!/bin/bash\n#SBATCH -N5\n#SBATCH --no-kill\nsrobust run x\n", True),
        ("#!/bin/bash\n#SBATCH -N5 -k --exclusive # a spare\n\n# more\nx\n", True),
        ("#!/bin/bash\n#SBATCH --no-kill=off\nx\n", False),
        ("#!/bin/bash\n#SBATCH -N5 # --no-kill\nx\n", False),
        ("#!/bin/bash\n##SBATCH --no-kill\nx\n", False),
        ("#!/bin/bash\nx\n#SBATCH --no-kill\n", False),  # behind the first command
        ("", False),
    ],
)
def test_no_kill_is_read_as_sbatch_reads_it(script: str, expected: bool) -> None:
    """An allocation that outlives a dead node: Slurm 22.05 tells it by no variable."""
    assert asks_no_kill(script) is expected
