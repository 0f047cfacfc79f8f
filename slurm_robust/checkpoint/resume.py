"""Chooses the checkpoint from which all ranks start: the choice of `srobust run`, else rank 0's choice."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store.find import Found, latest

PATH_VARIABLE = "SROBUST_RESUME_PATH"
STEP_VARIABLE = "SROBUST_RESUME_STEP"


def resume_from_env(directory: str | Path) -> Found:
    """Return where this attempt resumes: what `srobust run` exported, else the newest in `directory`.

    An exported empty path says that the folder of `--robust-checkpoint-dir` has none; `directory` may be another one.
    Without an exported path, rank 0 chooses and broadcasts its choice if torch.distributed is initialized; if it is
    not, each rank chooses by itself.

    Raises:
        CheckpointError: raised as by `latest`, or the exported step is not a number.
    """
    exported = os.environ.get(PATH_VARIABLE)
    if not exported:
        return _same_for_all(directory)
    text = os.environ.get(STEP_VARIABLE, "-1")
    try:
        return Found(path=Path(exported), step=int(text))
    except ValueError:
        raise CheckpointError(f"{STEP_VARIABLE} is {text!r}: not a number", f"Unset it and {PATH_VARIABLE}") from None


def _same_for_all(directory: str | Path) -> Found:
    # Without torch already loaded there is no process group, and loading it for this would cost a second.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return latest(directory)
    box: list[Found | CheckpointError | None] = [None]
    if distributed.get_rank() == 0:
        try:
            box = [latest(directory)]
        except CheckpointError as error:  # the other ranks wait for an answer: they get the error
            box = [error]
    distributed.broadcast_object_list(box, src=0)
    found = box[0]
    if isinstance(found, Found):
        return found
    raise found if isinstance(found, CheckpointError) else CheckpointError("rank 0 chose no checkpoint")
