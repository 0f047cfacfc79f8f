"""Keeps a job's versions of its code in its incident folder: `code/N/`, each with its facts, digests and diff.

code/          mode 0700: the code, and the orders to the supervisor, are the job owner's alone
  1/           a snapshot; its files are read-only
  1.json       who took it, when, from where, and how it differs from the one before; written last
  1.files      SHA-256 and path of each file, as `sha256sum` prints them
  2.diff       what version 2 changed
  state.json   what the supervisor says: the version in force, the one that waits, the answer to the last order
  order.json   what `srobust update` asks for, until the supervisor has read it
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from slurm_robust.core.text import shortened
from slurm_robust.policy.job.code_versions import CodeState
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.versions import changes, selection, snapshot
from slurm_robust.supervise.versions.changes import CodeChanges
from slurm_robust.supervise.versions.snapshot import FolderChangedError, Limits, SnapshotError
from slurm_robust.wire import own_folder, whole_file

FOLDER = "code"
_MAX_NUMBER = 9999
_MAX_LISTED = 500
_TRIES = 3
"""How often to try: an editor that saves a file may remove the file for a moment."""


@dataclass(frozen=True)
class CodeVersion:
    """One version of a job's code.

    Attributes:
        by: The user who took the snapshot.
        source: The folder that it was taken from.
        shared: Entries that are not part of the version → the target of the link in the snapshot.
        left_out: Entries that the version does not have → why.
        before: The version that `changes` compares it with; 0 for none.
        without_git: Why git could not be asked which files belong to it, so that all files were taken.
    """

    number: int
    at_s: float
    by: str
    host: str
    source: str
    files: int
    size_bytes: int
    commit: str = ""
    shared: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    before: int = 0
    changes: CodeChanges = field(default_factory=CodeChanges)
    without_git: str = ""


@dataclass(frozen=True)
class CodeAnswer:
    """The supervisor's answer to the order of this time."""

    order_at_s: float
    accepted: bool
    text: str


@dataclass(frozen=True)
class CodeReport:
    """The content of `state.json`.

    Attributes:
        own_shared: Paths in the source that stay shared in every version: the checkpoints.
        limits: The limits of the next snapshot.
        trouble: Why there is no version in force; empty if there is one.
    """

    job: str
    source: str
    state: CodeState
    limits: Limits
    own_shared: tuple[str, ...] = ()
    answer: CodeAnswer | None = None
    trouble: str = ""


@dataclass(frozen=True)
class Origin:
    """The origin of a snapshot: who takes it, from which folder.

    Attributes:
        source: The folder.
        own_shared: Paths in the folder that stay shared, as in `CodeReport`.
        before: The version to compare with, 0 for none.
    """

    source: Path
    by: str
    own_shared: tuple[str, ...] = ()
    before: int = 0


class VersionFolder:
    """The versions in one incident folder."""

    def __init__(self, incident_folder: Path, clock: SystemClock = CLOCK) -> None:
        self.path = incident_folder / FOLDER
        self._clock = clock

    def snapshot(self, number: int) -> Path:
        """Return the folder of a version's files."""
        return self.path / str(number)

    def take(self, origin: Origin, limits: Limits) -> CodeVersion:
        """Take a snapshot under the next number.

        Raises:
            SnapshotError: no snapshot was taken, and no files are left of it; the message says why.
        """
        for _ in range(_TRIES - 1):
            with contextlib.suppress(FolderChangedError):
                return self._take(origin, limits)
        return self._take(origin, limits)

    def _take(self, origin: Origin, limits: Limits) -> CodeVersion:
        try:
            found = selection.select(origin.source, shared=origin.own_shared, max_files=limits.files)
        except selection.SelectionError as error:
            raise SnapshotError(str(error)) from None
        snapshot.fits(found, origin.source, limits)
        target = self._next()
        try:
            return self._fill(target, found, origin, limits)
        except BaseException as error:  # also if Ctrl-C ends it
            self.remove(int(target.name))
            if isinstance(error, OSError):
                raise SnapshotError(str(error)) from None
            raise

    def _fill(self, target: Path, found: selection.Selection, origin: Origin, limits: Limits) -> CodeVersion:
        digests = snapshot.copy(found, origin.source, target, limits, self._clock)
        number, before = int(target.name), origin.before
        differs = CodeChanges()
        if before:
            old = self.digests(before)
            differs, diff = changes.compare(self.snapshot(before), target, old, digests)
            self._write(f"{number}.diff", diff.encode())
            known = self.version(before)
            snapshot.carry_over(self.snapshot(before), target, frozenset({*old, *(known.shared if known else ())}))
        self._write(f"{number}.files", "".join(f"{digests[path]}  {path}\n" for path in sorted(digests)).encode())
        version = CodeVersion(
            number,
            round(self._clock.now_s(), 3),
            origin.by,
            os.uname().nodename,
            str(origin.source.resolve()),
            len(digests),
            sum(found.files.values()),
            found.commit,
            _first(found.shared),
            _first(found.left_out),
            before,
            differs,
            found.without_git,
        )
        self._write(f"{number}.json", msgspec.json.format(msgspec.json.encode(version), indent=1))
        return version

    def _next(self) -> Path:
        """Make the folder of the next version; two versions that are taken at the same time get different folders."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            inside = own_folder.open_folder(str(self.path), make=0o700)
            os.fchmod(inside, 0o700)
            os.close(inside)
            # The number of a version whose files were removed counts, too: a number means one version for ever.
            known = (path.name.partition(".")[0] for path in self.path.iterdir())
            number = max((int(name) for name in known if name.isascii() and name.isdecimal()), default=0)
            while number < _MAX_NUMBER:
                number += 1
                with contextlib.suppress(FileExistsError):
                    self.snapshot(number).mkdir(mode=0o755)
                    return self.snapshot(number)
        except own_folder.NotOursError as error:
            raise SnapshotError(f"{self.path} is not a folder of yours: {error.strerror}") from None
        except OSError as error:
            raise SnapshotError(f"{self.path} cannot be written: {error.strerror}") from None
        raise SnapshotError(f"{self.path} holds {_MAX_NUMBER} versions: remove old ones")

    def _write(self, name: str, content: bytes) -> None:
        inside = own_folder.open_folder(str(self.path), make=0o700)
        try:
            whole_file.write(name, content, inside=inside)
        finally:
            os.close(inside)

    def remove(self, number: int) -> None:
        """Remove a version that is not in use."""
        for path in (*self.path.glob(f"{number}.*"), *self.path.glob(f".{number}.*")):
            with contextlib.suppress(OSError):
                path.unlink()
        shutil.rmtree(self.snapshot(number), ignore_errors=True)

    # -- reading ------------------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Return the version numbers that are in use, in order."""
        try:
            names = [path.name for path in self.path.iterdir()]
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def versions(self) -> list[CodeVersion]:
        """Return the versions that are complete, oldest first."""
        return [found for number in self.numbers() if (found := self.version(number)) is not None]

    def version(self, number: int) -> CodeVersion | None:
        """Return the facts of a version; None if there is no such version, or it is not complete."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode((self.path / f"{number}.json").read_bytes(), type=CodeVersion)
        return None

    def digests(self, number: int) -> dict[str, str]:
        """Return the digest of each file of a version by its path; empty if they are not known."""
        try:
            lines = (self.path / f"{number}.files").read_text("utf-8", "surrogateescape").split("\n")
        except OSError:
            return {}
        return {line[66:]: line[:64] for line in lines if line[64:66] == "  "}

    def damage(self, number: int) -> str:
        """Return why a version is not as it was taken; empty if it is.

        The program works in the version's folder, and may have replaced a file that is neither source nor executable.
        Such a file does not count, since no other version is closer to what the program ran with.
        """
        known = self.digests(number)
        if self.version(number) is None or not known or not self.snapshot(number).is_dir():
            return f"version {number} is not whole in {self.path}"
        for path, digest, trouble in snapshot.digests_of(self.snapshot(number), known):
            if (trouble or digest != known[path]) and not self._code(number, path):
                continue
            if trouble:
                return f"{path} of version {number} cannot be read: {trouble}"
            if digest != known[path]:
                return f"{path} of version {number} was changed after the snapshot"
        return ""

    def _code(self, number: int, path: str) -> bool:
        """Return whether this file of a version is code by its name, or can be executed."""
        return selection.is_source(path) or os.access(self.snapshot(number) / path, os.X_OK)

    def report(self) -> CodeReport | None:
        """Return the supervisor's report; None if there is none, or it cannot be read."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode((self.path / "state.json").read_bytes(), type=CodeReport)
        return None

    def write_report(self, report: CodeReport) -> None:
        """Write the supervisor's report.

        Raises:
            OSError: the disk refuses.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._write("state.json", msgspec.json.format(msgspec.json.encode(report), indent=1))


def _first(entries: Mapping[str, str]) -> dict[str, str]:
    return {path: entries[path] for path in sorted(entries)[:_MAX_LISTED]}


def not_part(version: CodeVersion) -> str:
    """Return a sentence with the entries of the folder that are not part of a version; empty if all are."""
    parts = []
    if version.without_git:
        parts.append(f"git could not be asked what belongs to the code, so all files were taken: {version.without_git}")
    if version.shared:
        parts.append(f"shared with {version.source}, not part of the version: {_names(version.shared)}")
    for reason, paths in selection.by_reason(version.left_out).items():
        parts.append(f"left out ({reason}): {_names(paths)}")
    return "; ".join(parts)


def _names(paths: Iterable[str]) -> str:
    names = list(paths)
    least = "at least " if len(names) >= _MAX_LISTED else ""
    more = f", and {least}{len(names) - 8} more" if len(names) > 8 else ""
    return f"{shortened(', '.join(names[:8]), 300)}{more}"
