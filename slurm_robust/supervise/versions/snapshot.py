"""Copies what belongs to a version of the code, and links to what stays shared with the folder it came from."""

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
"""The ioctl that has a new file share the blocks of another one until either is written to."""
_COPIERS = 8
"""At the same time: a network's file system answers each after a while."""
_TRIES = 3
_CHUNK = 1 << 20
_MIB = 1 << 20
_LARGEST_SHOWN = 3


class SnapshotError(Exception):
    """No snapshot was made; the message says why, and what to do."""


class FolderChangedError(SnapshotError):
    """A file has gone since the folder was read: reading it again may help."""


class _BusyFileError(SnapshotError):
    """Something writes to a file all the while."""


@dataclass(frozen=True)
class Limits:
    """What a snapshot may cost."""

    size_bytes: int
    files: int
    within_s: float


def fits(found: Selection, source: Path, limits: Limits) -> None:
    """Check the size before anything is copied.

    Raises:
        SnapshotError: there is no file, or there are too many bytes; the largest files are named.
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
    """Make the snapshot in `target`, an empty folder; returns the digest of each file by its path.

    Files are written read-only: nobody edits a version by mistake. Hard links would be edited along with their source
    by editors that write in place, so files are cloned where the file system can, else copied. A file that something
    writes to all the while is a log or a data set, unless it is source: `found` has it as shared then.

    Raises:
        FolderChangedError: a file has gone meanwhile.
        SnapshotError: it took too long, source changed all the while, or the disk refused.
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
    """Copy one file as it was at one moment; returns its digest."""
    for _ in range(_TRIES):
        # What has become a link or a pipe meanwhile is neither followed nor waited for.
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
    """Path, digest and empty text for each file below a folder; for one that cannot be read no digest, but the reason.

    Several are read at the same time.
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
        OSError: it cannot be read.
    """
    total = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()


def carry_over(old: Path, new: Path, known: frozenset[str]) -> list[str]:
    """Link from a new version to what the program has written into the old one, which is at work in its folder.

    `known` are the old version's own entries. Returns the paths.
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
        # What the program has made is linked as a whole, and links are not followed.
        folders[:] = [name for name in folders if str(here / name) in folders_known]
    return carried
