"""Chooses the checkpoint to resume from, and returns it as the argument that the framework expects."""

from __future__ import annotations

import sys
from pathlib import Path

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.integrations import group
from slurm_robust.checkpoint.resume import resume_from_env
from slurm_robust.checkpoint.store.find import latest
from slurm_robust.checkpoint.store.trackers import pin


def resume_path(directory: str | Path) -> str | None:
    """Return the checkpoint to resume from, the same for all ranks; None: there is none, start from scratch.

    For Lightning's `fit(ckpt_path=)`, the Trainer's `train(resume_from_checkpoint=)`, Accelerate's `load_state`.

    Raises:
        CheckpointError: raised as by `resume_from_env`.
    """
    found = resume_from_env(directory).path
    return None if found is None else str(found)


def resume_tag(directory: str | Path) -> str | None:
    """Return the name of the folder in `directory` that `resume_path` would return: DeepSpeed's `tag`."""
    found = resume_from_env(directory).path
    return None if found is None else found.name


def pin_latest(directory: str | Path) -> str | None:
    """Make the framework's own tracker point at the checkpoint to resume from; return its path, None if there is none.

    For Megatron-LM and DeepSpeed, which read a tracker when they load. All ranks call this before the load; rank 0
    acts. If it is called before `init_process_group`, the other ranks wait there for rank 0. A tracker that cannot be
    written, and a folder without a verified checkpoint, are reported on stderr, and the tracker stays unchanged.
    """
    chosen: str | None = None
    if group.rank() == 0:
        try:
            found = latest(directory)
            if found.path is not None:
                pin(Path(directory), found.path)
                chosen = str(found.path)
            for path, why in found.passed_over:
                sys.stderr.write(f"slurm_robust.checkpoint: skipped {path}: {why}\n")
        except CheckpointError as error:
            sys.stderr.write(f"slurm_robust.checkpoint: not pinned, the tracker is unchanged: {error}\n")
    group.wait_for_all()
    return chosen
