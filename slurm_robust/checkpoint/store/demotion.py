"""A checkpoint that is whole and still must not be used: training died from it, or its bytes changed."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store import files
from slurm_robust.checkpoint.store.checkpoint_files import DEMOTED_NAME, SEAL_NAME, beside


class Demotion(msgspec.Struct, frozen=True, kw_only=True):
    """Why a checkpoint is passed over; `seal` is the digest of the seal it speaks of, so that a new seal ends it."""

    why: str
    at_s: float
    seal: str


def demote(path: str | Path, why: str) -> None:
    """Have `latest` pass over the checkpoint at `path` from now on, until it is sealed anew.

    Raises:
        CheckpointError: the marker cannot be written.
    """
    path = Path(path)
    try:
        # Demoting one whose seal is gone or unreadable is allowed: it is passed over twice over.
        seal = _seal_digest(path)
        marker = msgspec.json.encode(Demotion(why=why, at_s=time.time(), seal=seal))
        files.write_atomic(beside(path, DEMOTED_NAME), marker)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be demoted: {error}", "Move the folder away by hand if training dies from it"
        ) from error


def demotion(path: Path) -> str:
    """Why the checkpoint at `path` is demoted; empty where it is not, or was sealed anew since."""
    where = beside(path, DEMOTED_NAME)
    try:
        found = msgspec.json.decode(where.read_bytes(), type=Demotion)
    except FileNotFoundError:
        return ""
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"{DEMOTED_NAME} cannot be read ({error})"
    return (found.why or "no reason given") if found.seal == _seal_digest(path) else ""


def _seal_digest(path: Path) -> str:
    try:
        return files.digest(beside(path, SEAL_NAME))
    except FileNotFoundError:
        return ""
