"""Compares a checkpoint with its seal: cheaply (sizes and times of change), or byte for byte."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.checkpoint_files import VERIFIED_NAME, base, beside, contents, require
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store.seals import FileSeal, Seal, step_in_name
from slurm_robust.checkpoint.store.seals import read as read_seal


class Problem(msgspec.Struct, frozen=True):
    """The problem with a file; `file` is relative to the checkpoint, empty for the checkpoint itself."""

    file: str
    what: str


class VerificationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a verification.

    Attributes:
        verified: No problem was found. Without a seal only the files' structure was checked.
        step: -1 if unknown.
        world_size: Ranks that wrote it; 0 if unknown.
        formats: The recognised formats: `HF Trainer`, `safetensors`.
    """

    path: str
    verified: bool
    sealed: bool
    step: int
    problems: tuple[Problem, ...] = ()
    world_size: int = 0
    formats: tuple[str, ...] = ()


class _Remembered(msgspec.Struct, frozen=True):
    """A digest that was read back and matched, with the state of the file at that time."""

    size_bytes: int
    mtime_ns: int
    inode: int
    xxh3_128: str


def check(
    path: Path,
    seal: Seal,
    *,
    deep: bool = False,
    fresh: bool = False,
    remember: bool = False,
    on_bytes: files.OnBytes | None = None,
) -> list[Problem]:
    """Compare a checkpoint with its seal.

    A file with the sealed size, time of change and inode counts as unchanged; a file that was copied or touched is
    read. The result can be remembered beside the seal, so that it is read only once. So truncation, replacement and
    writing in place are found with one `stat` a file; silent corruption on the disk is found by `deep`, and by `load`.

    Args:
        path: The checkpoint.
        seal: Its seal.
        deep: Read every file that was not read back since it was sealed.
        fresh: Read every file, even if it is remembered as read.
        remember: Record which files were read and match; for a job that starts and for `prune`, not for commands that
            only read.
        on_bytes: Called for every piece read.

    Raises:
        OSError: a file exists and cannot be read: the result is unknown.
    """
    folder = base(path)
    memory = _recall(path)
    learnt: dict[str, _Remembered] = {}
    wrong: dict[str, str] = {}
    unread: list[tuple[FileSeal, _Remembered]] = []
    for file in seal.files:
        where = folder / file.name
        try:
            now = where.stat()
        except (FileNotFoundError, NotADirectoryError):
            wrong[file.name] = "missing"
            continue
        if not stat.S_ISREG(now.st_mode):
            wrong[file.name] = "not a regular file any more"
            continue
        if now.st_size != file.size_bytes:
            wrong[file.name] = f"{now.st_size} bytes, sealed with {file.size_bytes}"
            continue
        seen = _Remembered(now.st_size, now.st_mtime_ns, now.st_ino, file.xxh3_128)
        unchanged = (now.st_mtime_ns, now.st_ino) == (file.mtime_ns, file.inode)
        if not fresh and (memory.get(file.name) == seen or (unchanged and not deep)):
            continue
        unread.append((file, seen))
    digests = files.in_parallel(lambda one: files.digest(folder / one[0].name, on_bytes), unread)
    for (file, seen), found in zip(unread, digests, strict=True):
        if found == file.xxh3_128:
            learnt[file.name] = seen
        else:
            wrong[file.name] = mismatch(found, file, folder / file.name)
    if learnt and remember:
        # Best effort: in a read-only folder, it is read again the next time.
        with contextlib.suppress(OSError):
            files.write_atomic(beside(path, VERIFIED_NAME), msgspec.json.encode(memory | learnt), durable=False)
    return [Problem(file.name, wrong[file.name]) for file in seal.files if file.name in wrong]


def mismatch(found: str, file: FileSeal, where: Path) -> str:
    """Describes a digest that does not match: both digests, and the part of the file that differs."""
    whole = f"its bytes changed since it was sealed: xxh3-128 {found}, sealed with {file.xxh3_128}"
    parts: list[str] = []
    if file.parts:
        with contextlib.suppress(OSError):
            files.digest(where, None, parts)
    differ = [(n, *pair) for n, pair in enumerate(zip(parts, file.parts, strict=False)) if pair[0] != pair[1]]
    if not differ:
        return f"{whole}; bytes 0 to {file.size_bytes - 1}"
    n, is_now, was = differ[0]
    end = min((n + 1) * files.PART_BYTES, file.size_bytes) - 1
    more = f", and in {len(differ) - 1} more parts" if len(differ) > 1 else ""
    return f"{whole}; bytes {n * files.PART_BYTES} to {end}: xxh3-64 {is_now}, sealed with {was}{more}"


def verify(path: str | Path, *, values: bool = False, on_bytes: files.OnBytes | None = None) -> VerificationReport:
    """Read every byte of the checkpoint at `path` and compare; without a seal, check its files' structure.

    Args:
        path: The checkpoint.
        values: Search the tensors for NaN and Inf, too.
        on_bytes: Called for every piece read.

    Raises:
        CheckpointError: it does not exist, or `values` needs numpy.
        OSError: a file cannot be read: the result is unknown.
    """
    path = Path(path)
    require(path)
    try:
        seal = read_seal(path)
    except CheckpointError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return VerificationReport(
            path=str(path), verified=False, sealed=False, step=-1, problems=(Problem("", str(error)),)
        )
    if seal is None:
        report = structure(path, on_bytes=on_bytes)
    else:
        problems = check(path, seal, fresh=True, on_bytes=on_bytes)
        report = VerificationReport(
            path=str(path),
            verified=not problems,
            sealed=True,
            step=seal.step,
            problems=tuple(problems),
            world_size=seal.world_size,
            formats=tuple(seal.layout.split(", ")) if seal.layout else (),
        )
    if values and report.verified:
        from slurm_robust.checkpoint.store.bad_values import not_finite  # noqa: PLC0415 (numpy)

        found = tuple(Problem(file, what) for file, what in not_finite(base(path), contents(path), on_bytes))
        report = msgspec.structs.replace(report, verified=not found, problems=found)
    return report


def structure(path: Path, *, on_bytes: files.OnBytes | None = None) -> VerificationReport:
    """Check the structure of a checkpoint without a seal.

    Nothing is remembered: writing a file of ours into a folder without a seal would count as a modification of it, for
    which `seal --all` would wait.

    Raises:
        OSError: a file cannot be read: the result is unknown.
    """
    from slurm_robust.checkpoint.store.structure import inspect  # noqa: PLC0415 (the lookup of seals does not need it)

    try:
        names = contents(path)
    except CheckpointError as error:
        names = []
        problems = [Problem("", error.what)]
    else:
        problems = [] if names else [Problem("", "holds no file")]
    found = inspect(base(path), names, on_bytes=on_bytes)
    problems += [Problem(file, what) for file, what in found.problems]
    step = step_in_name(path) if found.step is None else found.step
    return VerificationReport(
        path=str(path),
        verified=not problems,
        sealed=False,
        step=-1 if step is None else step,
        problems=tuple(problems),
        world_size=found.world_size,
        formats=found.formats,
    )


def _recall(path: Path) -> dict[str, _Remembered]:
    try:
        return msgspec.json.decode(beside(path, VERIFIED_NAME).read_bytes(), type=dict[str, _Remembered])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
