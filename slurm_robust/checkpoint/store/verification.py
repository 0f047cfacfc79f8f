"""Is a checkpoint what its seal says? Cheaply (sizes and times of change), or byte for byte."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store import files
from slurm_robust.checkpoint.store.checkpoint_files import VERIFIED_NAME, base, beside, contents, require
from slurm_robust.checkpoint.store.seals import FileSeal, Seal, step_in_name
from slurm_robust.checkpoint.store.seals import read as read_seal


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a file; `file` is relative to the checkpoint, empty for the checkpoint itself."""

    file: str
    what: str


class VerificationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a verification.

    Attributes:
        verified: No problem was found. Without a seal that speaks of the files' own structure only.
        step: -1 where unknown.
        world_size: Ranks that wrote it; 0 where unknown.
        formats: What it is, as far as that is known: `HF Trainer`, `safetensors`.
    """

    path: str
    verified: bool
    sealed: bool
    step: int
    problems: tuple[Problem, ...] = ()
    world_size: int = 0
    formats: tuple[str, ...] = ()


class _Remembered(msgspec.Struct, frozen=True):
    """A digest that was read back and found right, for the file as it was then."""

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

    A file with the sealed size, time of change and inode is taken as it is; one that was copied or touched since is
    read. Its outcome can be remembered beside the seal, so that it is read once only. So truncation, replacement and
    writing in place are found at the price of one `stat` a file; what silently rots on the disk is found by `deep`,
    and by `load`.

    Args:
        path: The checkpoint.
        seal: Its seal.
        deep: Read every file that was not read back since it was sealed.
        fresh: Read every file, whatever is remembered.
        remember: Write down what was read and fits. Only for those who act (a job that starts, `prune`): a command
            that looks writes nothing.
        on_bytes: Told of every piece read.

    Raises:
        OSError: a file is there and cannot be read: nobody can tell.
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
        # Best effort: in a folder that we may not write to, it is read again the next time.
        with contextlib.suppress(OSError):
            files.write_atomic(beside(path, VERIFIED_NAME), msgspec.json.encode(memory | learnt), durable=False)
    return [Problem(file.name, wrong[file.name]) for file in seal.files if file.name in wrong]


def mismatch(found: str, file: FileSeal, where: Path) -> str:
    """The words for a digest that does not fit: both digests, and the part of the file that differs."""
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
    """Read every byte of the checkpoint at `path` and compare; without a seal, look at its files' structure.

    Args:
        path: The checkpoint.
        values: Look for NaN and Inf in the tensors, too.
        on_bytes: Told of every piece read.

    Raises:
        CheckpointError: it is not there, or `values` cannot be had.
        OSError: something of it cannot be read: nobody can tell.
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
    """What the structure of a checkpoint without a seal tells.

    Nothing of it is remembered: a file of ours in a folder without a seal would be a write to what may still be being
    written, and `seal --all` would wait for it to settle.

    Raises:
        OSError: something of it cannot be read: nobody can tell.
    """
    from slurm_robust.checkpoint.store.structure import inspect  # noqa: PLC0415 (the lookup of seals does without)

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
