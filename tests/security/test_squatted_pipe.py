"""An attack on the pipe by which a rank is asked for a dump: PyTorch fails where it cannot make its pipe."""

from __future__ import annotations

import os
from pathlib import Path

from other_user import ATTACKER, VICTIM, as_user, needs_root

from slurm_robust.supervise.launch import attempt_settings

ATTEMPT, RANKS = f"{os.getpid()}.0.4711.1", range(2)
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


@needs_root
def test_a_pipe_made_first_keeps_no_training_from_starting(tmp_path: Path) -> None:
    """Job, restart, launcher and launch can be guessed, the rest of the name cannot."""
    guessed = [Path(f"/tmp/srobust-{ATTEMPT}-{rank}.pipe") for rank in RANKS]
    made: list[str] = []

    def start() -> list[str]:
        env = attempt_settings.environment({}, ATTEMPT, "abc", attempt_settings.ResumePoint(), tmp_path)
        paths = [f"{env[PIPE]}{rank}.pipe" for rank in RANKS]
        for path in map(Path, paths):  # as PyTorch does it
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        return paths

    as_user(ATTACKER, lambda: [path.touch() for path in guessed])
    try:
        made = as_user(VICTIM, start)
        assert len(made) == len(RANKS)
    finally:
        for path in (*guessed, *map(Path, made)):
            path.unlink(missing_ok=True)


def test_no_two_launches_have_names_in_common(tmp_path: Path) -> None:
    """Neither their pipes nor their dumps: of one launch nobody learns those of the next."""
    envs = [
        attempt_settings.environment({}, ATTEMPT, "abc", attempt_settings.ResumePoint(), tmp_path) for _ in range(2)
    ]
    for name in (PIPE, "TORCH_FR_DUMP_TEMP_FILE"):
        assert envs[0][name] != envs[1][name]
        assert Path(envs[0][name]).name.startswith(("srobust-", ATTEMPT))
    assert envs[0][PIPE].rpartition("-")[0].rpartition("-")[2] not in envs[0]["TORCH_FR_DUMP_TEMP_FILE"]
