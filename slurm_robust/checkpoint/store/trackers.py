"""Reads and rewrites trackers: the files in which frameworks name their newest checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.formats import deepspeed, megatron

LIGHTNING = "last.ckpt"
_LARGEST_BYTES = 4096
_LONGEST_NAME_BYTES = 255


class Tracker(msgspec.Struct, frozen=True, kw_only=True):
    """A tracker and its target; `problem` says why a framework cannot follow it, empty if it can."""

    name: str
    target: Path | None = None
    problem: str = ""


_TEXTS: tuple[tuple[str, Callable[[str], str | None], Callable[[str], str | None]], ...] = (
    (megatron.TRACKER, megatron.pinned, megatron.pin),
    (deepspeed.TRACKER, deepspeed.pinned, deepspeed.pin),
)


def trackers(directory: Path) -> list[Tracker]:
    """Return the trackers of `directory`. Raises OSError if one cannot be read."""
    found = []
    for name, pinned, _ in _TEXTS:
        where = directory / name
        if not where.is_file() or (name == deepspeed.TRACKER and where.is_symlink()):
            continue
        with where.open("rb") as file:
            text = file.read(_LARGEST_BYTES).decode(errors="replace").strip()
        if len(text.split()) > 1 and name == deepspeed.TRACKER:
            continue  # not DeepSpeed's: the name is a common one
        target = pinned(text)
        if target is not None and ("\0" in target or len(os.fsencode(target)) > _LONGEST_NAME_BYTES):
            target = None
        problem = f"contains {text[:80]!r}: not a checkpoint's name" if target is None else ""
        if target is not None and not (directory / target).is_dir():
            problem = f"points at {target}, which is not there"
        found.append(Tracker(name=name, target=None if target is None else directory / target, problem=problem))
    link = directory / LIGHTNING
    if link.is_symlink():
        target_path = Path(os.path.normpath(directory / link.readlink()))
        problem = "" if link.exists() else f"points at {link.readlink()}, which is not there"
        found.append(Tracker(name=LIGHTNING, target=target_path, problem=problem))
    return found


def pin(directory: Path, path: Path) -> list[str]:
    """Make the framework's own tracker point at the checkpoint `path` of `directory`; return the trackers' names.

    Rewrites existing trackers; if there is none, creates the one for this kind of checkpoint.

    Raises:
        CheckpointError: no tracker exists for such a checkpoint, or the tracker cannot be written.
    """
    try:
        names = [tracker.name for tracker in trackers(directory)] or _made_for(path)
        if not names:
            raise CheckpointError(
                f"{path}: its framework has no tracker file",
                f"Give the path itself (HF Trainer: resume_from_checkpoint={str(path)!r})",
            )
        for name in names:
            _point(directory, name, path)
    except OSError as error:
        raise CheckpointError(f"{directory}: the tracker cannot be written: {error}") from error
    return names


def _made_for(path: Path) -> list[str]:
    if path.suffix == ".ckpt":
        return [LIGHTNING]
    if not path.is_dir():
        return []
    if any(name.endswith("_states.pt") for name in os.listdir(path)):  # noqa: PTH208 (only names are needed)
        return [deepspeed.TRACKER]
    inside = any(path.glob("mp_rank_*")) or (path / "common.pt").exists()
    return [megatron.TRACKER] if inside and megatron.pin(path.name) is not None else []


def _point(directory: Path, name: str, path: Path) -> None:
    """Rewrite one atomically; CheckpointError if it cannot name this checkpoint, OSError if it cannot be written."""
    if name == LIGHTNING:
        _link(directory, path)
        return
    text = next(say for tracker, _, say in _TEXTS if tracker == name)(path.name)
    if text is None:
        raise CheckpointError(
            f"{directory / name}: cannot point at {path.name}: its format has no such name",
            "Rename the folder as the framework names its checkpoints",
        )
    files.write_atomic(directory / name, text.encode())


def _link(directory: Path, path: Path) -> None:
    link = directory / LIGHTNING
    if link.exists() and not link.is_symlink():
        raise CheckpointError(
            f"{link}: is a checkpoint itself, not a link: it is not overwritten",
            f"Give the path itself (ckpt_path={str(path)!r}), or move it away",
        )
    temporary = directory / f".{LIGHTNING}.{os.getpid()}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path.name)
    temporary.replace(link)
    files.sync_folder(directory)
