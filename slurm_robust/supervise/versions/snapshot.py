"""Copies the files of a version of the code, and links to files that stay shared with the original folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from slurm_robust.core.text import shortened
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.versions import selection
from slurm_robust.supervise.versions.selection import Selection
from slurm_robust.wire import plain_file

_FICLONE = 0x40049409
"""The ioctl that lets a new file share the blocks of another file until one of them is written to."""
_COPIERS = 8
"""How many files are copied at the same time: a network file system answers each request after a while."""
_TRIES = 3
_CHUNK = 1 << 20
_MIB = 1 << 20
_LARGEST_SHOWN = 3


class SnapshotError(Exception):
    """No snapshot was made; the message says why, and what to do."""


class FolderChangedError(SnapshotError):
    """A file has gone since the folder was read: reading the folder again may help."""


class _BusyFileError(SnapshotError):
    """Something writes to a file all the while."""


@dataclass(frozen=True)
class Limits:
    """The most that a snapshot may cost."""

    size_bytes: int
    files: int
    within_s: float


def fits(found: Selection, source: Path, limits: Limits) -> None:
    """Check the size before anything is copied.

    Raises:
        SnapshotError: there is no file, or there are too many bytes; the message names the largest files.
    """
    if not found.files:
        raise SnapshotError(f"{source} has no file that belongs to its code")
    git = f" (git could not be asked which files it ignores: {found.without_git})" if found.without_git else ""
    size_bytes = sum(found.files.values())
    if size_bytes > limits.size_bytes:
        largest = sorted(found.files, key=found.files.__getitem__, reverse=True)[:_LARGEST_SHOWN]
        names = ", ".join(f"{name} ({found.files[name] / _MIB:.1f} MiB)" for name in largest)
        raise SnapshotError(
            f"the code in {source} has {size_bytes / _MIB:.1f} MiB, more than {limits.size_bytes / _MIB:g} MiB "
            f"(supervise.code_max_mib); the largest files: {shortened(names, 300)}. Name the folder with the code "
            f"alone, or list in .gitignore what is not code{git}"
        )


def copy(found: Selection, source: Path, target: Path, limits: Limits, clock: SystemClock = CLOCK) -> dict[str, str]:
    """Make the snapshot in `target`, an empty folder; return the digest of each file by its path.

    Files are made read-only, so that nobody edits a version by mistake. Editors that write in place would change hard
    links with their source, so files are cloned if the file system can, else copied. A file that is written to all the
    while is a log or a data set, unless it is source: it becomes shared in `found`.

    Raises:
        FolderChangedError: a file has gone meanwhile.
        SnapshotError: the copy took too long, source changed all the while, or the disk refused.
    """
    root, until_s = source.resolve(), clock.monotonic_s() + limits.within_s

    def one(path: str) -> tuple[str, str]:
        if clock.monotonic_s() > until_s:
            raise SnapshotError(f"the code in {source} could not be copied within {limits.within_s:g} s")
        try:
            return path, _copy_file(root / path, target / path)
        except FileNotFoundError:
            raise FolderChangedError(f"{root / path} has gone while {source} was copied: try again") from None
        except _BusyFileError:
            if selection.is_source(path):
                raise
            (target / path).unlink()
            return path, ""

    try:
        for folder in sorted({(target / path).parent for path in (*found.files, *found.links, *found.shared)}):
            folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_COPIERS) as pool:
            digests = dict(pool.map(one, found.files))
        for path in [path for path, found_digest in digests.items() if not found_digest]:
            del digests[path], found.files[path]
            found.shared[path] = str(root / path)
        for path, inside in found.links.items():
            place = target / path
            place.symlink_to(os.path.relpath(target / inside, place.parent))
        for path, outside in found.shared.items():
            (target / path).symlink_to(outside)
    except OSError as error:
        raise SnapshotError(f"{error.filename or target}: {error.strerror}") from None
    return digests


def _copy_file(source: Path, target: Path) -> str:
    """Copy one file as it was at one moment; return its digest."""
    for _ in range(_TRIES):
        # If the file has become a link or a pipe meanwhile, it is neither followed nor waited for.
        fd = plain_file.open_plain(source)
        with os.fdopen(fd, "rb") as original, target.open("wb") as copied:
            before = os.fstat(fd)
            try:
                fcntl.ioctl(copied, _FICLONE, fd)
            except OSError:
                shutil.copyfileobj(original, copied, _CHUNK)
            after = os.fstat(fd)
        if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
            os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
            target.chmod(stat.S_IMODE(before.st_mode) & 0o555 | stat.S_IRUSR)
            return digest(target)
    raise _BusyFileError(f"{source} changes while it is copied: try again once nothing writes to it")


def digests_of(folder: Path, paths: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield path, digest and empty text for each file below a folder; without a digest, the text is the reason.

    Several files are read at the same time.
    """

    def one(path: str) -> tuple[str, str, str]:
        try:
            return path, digest(folder / path), ""
        except OSError as error:
            return path, "", error.strerror or str(error)

    with ThreadPoolExecutor(_COPIERS) as pool:
        yield from pool.map(one, paths)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    total = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()


def carry_over(old: Path, new: Path, known: frozenset[str]) -> list[str]:
    """Link from a new version to files that the program, working in the old version's folder, has written there.

    `known` are the old version's own entries. Return the paths of the links.
    """
    folders_known = {str(parent) for path in known for parent in PurePosixPath(path).parents}
    carried = []
    for place, folders, files in os.walk(old):
        here = Path(place).relative_to(old)
        for path in (str(here / name) for name in (*folders, *files) if name != "__pycache__"):
            link = new / path
            made_by_program = path not in known and path not in folders_known
            if made_by_program and link.parent.is_dir() and not link.is_symlink() and not link.exists():
                with contextlib.suppress(OSError):
                    link.symlink_to((old / path).resolve())
                    carried.append(path)
        # A folder that the program has made is linked as a whole, and links are not followed.
        folders[:] = [name for name in folders if str(here / name) in folders_known]
    return carried
