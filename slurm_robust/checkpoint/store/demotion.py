"""Marks a checkpoint that must not be used: attempts that started from it died, or its bytes changed."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.checkpoint_files import DEMOTED_NAME, SEAL_NAME, beside
from slurm_robust.checkpoint.errors import CheckpointError


class Demotion(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a checkpoint must not be chosen; `seal` is its seal's digest: a new seal ends the demotion."""

    why: str
    at_s: float
    seal: str


def demote(path: str | Path, why: str) -> None:
    """Make `latest` skip this checkpoint until it is sealed again. Raises CheckpointError if that cannot be written."""
    path = Path(path)
    try:
        seal = _seal_digest(path)
        marker = msgspec.json.encode(Demotion(why=why, at_s=time.time(), seal=seal))
        files.write_atomic(beside(path, DEMOTED_NAME), marker)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be demoted: {error}", "Move the folder away by hand if training fails from it"
        ) from error


def demotion(path: Path) -> str:
    """Return why the checkpoint at `path` is demoted; empty if it is not, or was sealed again since."""
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
