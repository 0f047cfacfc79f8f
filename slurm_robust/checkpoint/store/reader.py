"""Loads a file of a checkpoint after comparing its bytes with the seal."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.checkpoint_files import base
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store import seals
from slurm_robust.checkpoint.store.demotion import demote
from slurm_robust.checkpoint.store.verification import mismatch


def load(path: str | Path, rank: int = 0, *, map_location: Any = "cpu", weights_only: bool = True) -> Any:
    """Read back what `rank` gave to `save`, or the only file of a checkpoint that was sealed from outside.

    Every byte is compared with the seal first. A damaged checkpoint is demoted, so that the next start skips it.

    Raises:
        CheckpointError: no seal, no file of that rank, or damaged bytes; says which, and what to type.
    """
    import torch  # noqa: PLC0415 (the lookup at a restart must not load it)

    path = Path(path)
    seal = seals.read(path)
    if seal is None:
        raise CheckpointError(f"{path}: no seal: it was never verified", f"srobust ckpt latest {path.parent}")
    names = {file.name: file for file in seal.files}
    file = next((names[name] for name in names if _is_of_rank(name, rank)), None)
    if file is None and len(names) == 1 and not seal.world_size:
        (file,) = seal.files
    if file is None:
        raise CheckpointError(
            f"{path}: no file of rank {rank}; it was written by {seal.world_size} ranks",
            f"Start with {seal.world_size} ranks, or load another rank's file: load(path, rank=…)",
        )
    where = base(path) / file.name
    instead = f"`srobust ckpt latest {path.parent}` prints the newest that is complete; this one is skipped from now on"
    try:
        with where.open("rb") as opened:
            found = files.digest(opened.fileno())
            if found != file.xxh3_128:
                what = mismatch(found, file, where)
                with contextlib.suppress(CheckpointError):  # the mismatch is reported even if we may not write there
                    demote(path, f"{file.name}: {what}")
                raise CheckpointError(f"{where}: {what}", instead)
            opened.seek(0)
            return torch.load(opened, map_location=map_location, weights_only=weights_only)
    except FileNotFoundError:
        raise CheckpointError(f"{where}: missing", instead) from None
    except OSError as error:
        raise CheckpointError(f"{where}: cannot be read: {error}", instead) from error


def _is_of_rank(name: str, rank: int) -> bool:
    match = re.fullmatch(r"rank-0*(\d+)(\.\d+)?\.pt", name)
    return match is not None and int(match[1]) == rank
