"""Which checkpoint does training resume from? The newest that is sealed, whole and not demoted."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.demotion import demotion
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.seals import SEAL_NAME, Seal, step_in_name
from slurm_robust.checkpoint.seals import read as read_seal
from slurm_robust.checkpoint.verification import check

_FILE_SEAL_SUFFIX = f".{SEAL_NAME}"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Where training resumes.

    Attributes:
        path: The checkpoint, None where there is none to resume from: training starts anew.
        step: Its step, -1 where there is none.
        passed_over: (path, why) of newer ones, newest first.
    """

    path: Path | None = None
    step: int = -1
    passed_over: tuple[tuple[Path, str], ...] = ()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint of a folder; `problem` says why it would not be chosen, empty where it would."""

    path: Path
    step: int
    sealed: bool
    problem: str = ""
    size_bytes: int = 0
    created_at_s: float = 0.0


def latest(directory: str | Path, *, deep: bool = False) -> Found:
    """The newest checkpoint in `directory` that may be resumed from.

    Only as many are looked at as it takes. See `verification.check` for what is compared, and for `deep`.

    Raises:
        CheckpointError: the folder is there and cannot be listed. (One that is not there yet has no checkpoint.)
    """
    passed_over: list[tuple[Path, str]] = []
    for path, seal, problem in _candidates(Path(directory)):
        why = problem or (_why_not(path, seal, deep=deep) if seal is not None else "no seal: its save did not finish")
        if not why and seal is not None:
            return Found(path=path, step=seal.step, passed_over=tuple(passed_over))
        passed_over.append((path, why))
    return Found(passed_over=tuple(passed_over))


def entries(directory: str | Path, *, deep: bool = False) -> list[Entry]:
    """Every checkpoint in `directory`, newest first.

    Raises:
        CheckpointError: as `latest`.
    """
    return [
        Entry(
            path=path,
            step=_step(path, seal),
            sealed=seal is not None,
            problem=problem or (_why_not(path, seal, deep=deep) if seal is not None else "no seal"),
            size_bytes=sum(file.size_bytes for file in seal.files) if seal is not None else 0,
            created_at_s=seal.created_at_s if seal is not None else 0.0,
        )
        for path, seal, problem in _candidates(Path(directory))
    ]


def _why_not(path: Path, seal: Seal, *, deep: bool) -> str:
    if why := demotion(path):
        return f"demoted: {why}"
    try:
        problems = check(path, seal, deep=deep)
    except OSError as error:
        return f"cannot be read: {error}"
    if not problems:
        return ""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0].file}: {problems[0].what}{more}"


def _step(path: Path, seal: Seal | None) -> int:
    if seal is not None:
        return seal.step
    told = step_in_name(path)
    return -1 if told is None else told


def _candidates(directory: Path) -> list[tuple[Path, Seal | None, str]]:
    """(path, its seal, what is wrong with the seal): sealed folders and files, and folders named after a step."""
    found: list[tuple[Path, Seal | None, str]] = []
    try:
        with os.scandir(directory) as listing:
            names = [(entry.name, entry.is_dir()) for entry in listing if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(
            f"{directory}: cannot be listed: {error}", "Nobody can say where training should resume: look at the folder"
        ) from error
    for name, is_folder in names:
        if not is_folder and not name.endswith(_FILE_SEAL_SUFFIX):
            continue
        path = directory / name.removesuffix(_FILE_SEAL_SUFFIX)
        try:
            seal, problem = read_seal(path), ""
        except CheckpointError as error:
            seal, problem = None, error.what
        if seal is not None or problem or (is_folder and step_in_name(path) is not None):
            found.append((path, seal, problem))
    return sorted(
        found,
        key=lambda one: (_step(one[0], one[1]), one[1].created_at_s if one[1] else 0.0, one[0].name),
        reverse=True,
    )
