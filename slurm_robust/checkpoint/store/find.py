"""Chooses the checkpoint to resume from: the newest that is sealed, complete and not demoted."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.base import rollback_log
from slurm_robust.checkpoint.base.checkpoint_files import NOT_TEXT, SEAL_NAME, base, beside, contents, is_text
from slurm_robust.checkpoint.base.files import OnBytes
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store.demotion import demotion
from slurm_robust.checkpoint.store.seals import Seal, step_in_name
from slurm_robust.checkpoint.store.seals import read as read_seal
from slurm_robust.checkpoint.store.verification import Problem, check, structure

_FILE_SEAL_SUFFIX = f".{SEAL_NAME}"
_UNSEALED_FILE = re.compile(
    r".*(?:step|iter|epoch|checkpoint|ckpt).*\d.*\.(?:ckpt|pt|pth|safetensors)\Z", re.IGNORECASE
)
_LISTINGS = 5
NO_SEAL = "no seal: its save did not finish, or it was never sealed"


class Unreadable(str):
    """The reason for skipping a checkpoint that cannot be read; any other reason means that it is bad."""

    __slots__ = ()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint from which training resumes.

    Attributes:
        path: The checkpoint; None if there is no checkpoint, and training starts from scratch.
        step: The checkpoint's step; -1 without a checkpoint.
        sealed: False if only its structure was checked.
        passed_over: (path, why) of newer checkpoints, newest first.
    """

    path: Path | None = None
    step: int = -1
    sealed: bool = True
    passed_over: tuple[tuple[Path, str], ...] = ()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint of a folder; `problem` says why it would not be chosen, and is empty if it would."""

    path: Path
    step: int
    sealed: bool
    problem: str = ""
    size_bytes: int = 0
    created_at_s: float = 0.0


def latest(
    directory: str | Path,
    *,
    deep: bool = False,
    unsealed: bool = False,
    remember: bool = True,
    on_bytes: OnBytes | None = None,
) -> Found:
    """Return the newest checkpoint in `directory` that may be resumed from.

    Reads only as many as necessary. See `verification.check` for what is compared, and for `deep` and `remember`: a job
    that starts remembers what it has read, so that its next start need not read it again. With `unsealed`, a checkpoint
    without a seal may be chosen, too, if its structure is intact.

    Raises:
        CheckpointError: the folder exists and cannot be listed (a missing folder has no checkpoint), or no checkpoint
            is usable and one cannot be read: a start from scratch would lose that one.
    """
    for _ in range(_LISTINGS):
        found, unread = _newest(Path(directory), deep=deep, unsealed=unsealed, remember=remember, on_bytes=on_bytes)
        # Meanwhile training may have saved and a prune may have removed all that were listed: list again.
        if found.path is not None or all(os.path.lexists(path) for path, _ in found.passed_over):
            break
    if found.path is None and unread is not None:
        raise CheckpointError(
            f"{directory}: no usable checkpoint, but one that may be usable, {unread[0].name}: {unread[1]}",
            "The checkpoint to resume from is unknown: check the folder",
        ) from OSError(unread[1])
    return found


def _newest(
    directory: Path, *, deep: bool, unsealed: bool, remember: bool, on_bytes: OnBytes | None
) -> tuple[Found, tuple[Path, str] | None]:
    """Do as `latest`, and also return the newest checkpoint that cannot be read."""
    passed_over: list[tuple[Path, str]] = []
    unread: tuple[Path, str] | None = None
    for path, seal, problem in candidates(directory):
        if seal is not None:
            step, why = seal.step, problem or _why_not(path, seal, deep=deep, remember=remember, on_bytes=on_bytes)
        elif problem or not unsealed:
            step, why = -1, problem or NO_SEAL
        else:
            step, why = _structure(path, on_bytes)
        if not why:
            return Found(path=path, step=step, sealed=seal is not None, passed_over=tuple(passed_over)), unread
        passed_over.append((path, str(why)))
        if isinstance(why, Unreadable):
            unread = unread or passed_over[-1]
    return Found(passed_over=tuple(passed_over)), unread


def entries(directory: str | Path, *, deep: bool = False, on_bytes: OnBytes | None = None) -> list[Entry]:
    """Return every checkpoint in `directory`, newest first; write nothing. Raises CheckpointError as `latest`."""
    return [entry_of(*one, deep=deep, on_bytes=on_bytes) for one in candidates(Path(directory))]


def entry_of(
    path: Path,
    seal: Seal | None,
    problem: str,
    *,
    deep: bool,
    remember: bool = False,
    on_bytes: OnBytes | None = None,
) -> Entry:
    """Return one of `candidates` as an entry; see `verification.check` for `deep` and `remember`."""
    if seal is None:
        return Entry(path=path, step=_step(path, None), sealed=False, problem=str(problem or "no seal"))
    return Entry(
        path=path,
        step=seal.step,
        sealed=True,
        problem=str(problem or _why_not(path, seal, deep=deep, remember=remember, on_bytes=on_bytes)),
        size_bytes=sum(file.size_bytes for file in seal.files),
        created_at_s=seal.created_at_s,
    )


def _structure(path: Path, on_bytes: OnBytes | None) -> tuple[int, str]:
    """Return the step of a checkpoint without a seal, and why it may not be used."""
    if why := demotion(path):
        return -1, f"demoted: {why}"
    try:
        report = structure(path, on_bytes=on_bytes)
        if why := _in_short(report.problems):
            return report.step, why
        gone = rollback_log.read(path.parent)
        changed_s = max((base(path) / name).stat().st_mtime for name in contents(path)) if gone else 0.0
        return report.step, rollback_log.given_up(gone, report.step, changed_s)
    except OSError as error:
        return -1, Unreadable(f"cannot be read: {error}")


def _why_not(path: Path, seal: Seal, *, deep: bool, remember: bool, on_bytes: OnBytes | None) -> str:
    if why := demotion(path):
        return f"demoted: {why}"
    try:
        problems = check(path, seal, deep=deep, remember=remember, on_bytes=on_bytes)
    except OSError as error:
        return Unreadable(f"cannot be read: {error}")
    return _in_short(problems)


def _in_short(problems: Sequence[Problem]) -> str:
    if not problems:
        return ""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0].file}: {problems[0].what}{more}".removeprefix(": ")


def _step(path: Path, seal: Seal | None) -> int:
    if seal is not None:
        return seal.step
    step = step_in_name(path)
    return -1 if step is None else step


def candidates(directory: Path) -> list[tuple[Path, Seal | None, str]]:
    """Return (path, its seal, what is wrong with the seal, or why the checkpoint was abandoned), newest first.

    Candidates are all sealed checkpoints, and those named after a step; links to others in the same folder are left
    out.

    Raises:
        CheckpointError: raised as by `latest`.
    """
    found: list[tuple[Path, Seal | None, str]] = []
    try:
        with os.scandir(directory) as listing:
            shown = [entry for entry in listing if not entry.name.startswith(".")]
            names = [(entry.name, _kind(entry)) for entry in shown if not _is_alias(directory, entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(
            f"{directory}: cannot be listed: {error}", "The checkpoint to resume from is unknown: check the folder"
        ) from error
    there = {name for name, _ in names}
    gone = rollback_log.read(directory) if rollback_log.ROLLBACKS_NAME in there else ()
    for name, kind in names:
        if isinstance(kind, OSError):
            # A circular link is no checkpoint, unless it has the name of one.
            if kind.errno != errno.ELOOP or step_in_name(Path(name)) is not None:
                found.append((directory / name, None, Unreadable(f"cannot be read: {kind}")))
            continue
        unsealed = _UNSEALED_FILE.match(name) and f"{name}{_FILE_SEAL_SUFFIX}" not in there
        if not kind and not name.endswith(_FILE_SEAL_SUFFIX) and not unsealed:
            continue
        path = directory / name.removesuffix(_FILE_SEAL_SUFFIX)
        try:
            seal, problem = (read_seal(path), "") if is_text(name) else (None, NOT_TEXT)
        except CheckpointError as error:
            seal, problem = None, Unreadable(error.what) if isinstance(error.__cause__, OSError) else error.what
        if seal is not None and gone:
            # The earlier of file server's and sealer's clock: one may be ahead. The state may be older than both.
            changed_s = max((file.mtime_ns for file in seal.files), default=0) / 1e9
            written_s = min(changed_s, seal.created_at_s, seal.saved_at_s or seal.created_at_s)
            problem = rollback_log.given_up(gone, seal.step, written_s)
        if seal is not None or (problem and problem != NOT_TEXT) or step_in_name(path) is not None:
            found.append((path, seal, problem))
    return sorted(
        found,
        key=lambda one: (_step(one[0], one[1]), one[1].created_at_s if one[1] else 0.0, one[0].name),
        reverse=True,
    )


def _is_alias(directory: Path, entry: os.DirEntry[str]) -> bool:
    """Return whether the entry links to a checkpoint in the same folder (NeMo's `-last`, Lightning's `last.ckpt`)."""
    if not entry.is_symlink():
        return False
    target = Path(os.path.realpath(directory / entry.name))
    if target.parent != Path(os.path.realpath(directory)) or target.name == entry.name:
        return False
    return target.exists() and (step_in_name(target) is not None or beside(target, SEAL_NAME).exists())


def _kind(entry: os.DirEntry[str]) -> bool | OSError:
    """Return whether the entry is a folder; the error if that is unknown."""
    try:
        return entry.is_dir()
    except OSError as error:
        return error
