"""How long a job must stay away from its nodes before it may start there again."""

from __future__ import annotations

import pytest

from slurm_robust.policy.cluster.recovery_step import credential_pause_s


@pytest.mark.parametrize(
    ("version", "flags", "pause_s"),
    [
        ("22.05.8", "Alloc,DeferBatch", 2),
        ("21.08.5", "Contain", 2),
        ("22.05.8", "", 0),
        ("22.05.8", "Serial", 0),
        ("23.02.0", "Alloc", 0),
        ("26.05.5", "Alloc,Contain", 0),
        ("unreadable", "Alloc", 2),
    ],
)
def test_only_an_old_slurmd_that_waits_for_its_prolog_needs_the_pause(version: str, flags: str, pause_s: int) -> None:
    """22.05 and older, with PrologFlags=Alloc in whatever form; a version nobody can read is taken for an old one."""
    assert credential_pause_s({"SLURM_VERSION": version, "PrologFlags": flags}) == pause_s
