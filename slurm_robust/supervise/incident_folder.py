"""Writes the incident folder beside the job's output: story, stacks, report.

If the disk is full, that is reported once, and training goes on.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.wire import own_folder, whole_file

STORY_FILE = "story.jsonl"
_MAX_READ = 64 << 20


def beside(output: Path | None, job: str, work_dir: Path) -> Path:
    """Return the path of a job's folder: beside its output file, else in its working directory."""
    parent = output.parent if output is not None else work_dir
    return parent / f"slurm-robust-{job}"


def of_run(chosen: str, outputs: Sequence[Path], job: str, work_dir: Path) -> Path:
    """Return the path of a supervised run's folder: in the folder that its user chose, else as `beside`."""
    return Path(chosen) / f"slurm-robust-{job}" if chosen else beside(outputs[0] if outputs else None, job, work_dir)


def names(path: Path) -> list[Path]:
    """Return the possible paths of the folder that is wanted at `path`, since others may have taken its name."""
    places = own_folder.names(str(path))
    with contextlib.suppress(OSError):
        places.append(own_folder.at_home(str(path)))
    return [Path(place) for place in places]


class IncidentFolder:
    """Writes into the folder, and also prints the story on stderr.

    If others may write to the place, too, somebody else's folder may have the name: then our folder gets another name,
    which is reported. The folder is opened once, and links in it are not followed.
    """

    _fd = -1

    def __init__(self, path: Path, *, quiet: bool = False, clock: SystemClock = CLOCK) -> None:
        self._wanted = self._path = path
        self._quiet = quiet
        self._clock = clock
        self._failure_reported = False

    def __del__(self) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The path of the folder, which is made unless the disk refuses."""
        with contextlib.suppress(OSError):
            self._open()
        return self._path

    def close(self) -> None:
        """Close the folder; the next use opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, make: int = 0o755) -> int:
        """Return the folder's descriptor. A folder that was removed is made again."""
        with contextlib.suppress(OSError):
            if self._fd >= 0 and os.fstat(self._fd).st_nlink:
                return self._fd
        self.close()
        self._fd, found = own_folder.first_own(str(self._wanted), make=make)
        if found != str(self._path):
            self._path = Path(found)
            if self._path != self._wanted:
                self._print(f"{self._wanted} is somebody else's, or others may write it: {found} is used instead")
        return self._fd

    @contextlib.contextmanager
    def _inside(self, name: str, make: int = 0o755) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the folder that holds a file, and the file's own name."""
        with contextlib.ExitStack() as opened:
            fd = self._open(make)
            *above, last = name.split("/")
            for part in above:
                fd = own_folder.open_folder(part, inside=fd, make=make)
                opened.callback(os.close, fd)
            yield fd, last

    def _failed(self, what: str, error: OSError) -> None:
        if not self._failure_reported:
            self._failure_reported = True
            self._print(f"cannot write {what}: {error}; training goes on, the story is on stderr only")

    def _print(self, text: str) -> None:
        if not self._quiet:
            # One line behind our mark: the job's output is read for progress, and our own lines must not count.
            text = "; ".join(filter(None, map(str.strip, text.splitlines())))
            at = time.strftime("%H:%M:%S", time.localtime(self._clock.now_s()))
            # A job whose own output is full or gone must not end the supervisor.
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"srobust: {at} {text}\n")
                sys.stderr.flush()

    def log_event(self, kind: str, text: str, **data: Any) -> None:
        """Add a line to the story. Write the pages that the line is about first: its readers open them next.

        `kind` is a stable word (`suspected`, `captured`, `decided`, …) and `data` holds more facts, both for tools.
        """
        self._print(text)
        line = json.dumps({"at_s": round(self._clock.now_s(), 3), "kind": kind, "text": text, **data}, default=str)
        self.append(STORY_FILE, line + "\n")

    def append(self, name: str, line: str) -> None:
        """Add a line to a file, in one write."""
        try:
            with self._inside(name) as (folder, last):
                fd = own_folder.open_file(last, os.O_WRONLY | os.O_APPEND | os.O_CREAT, inside=folder)
                with open(fd, "a", encoding="utf-8") as f:  # noqa: PTH123 (a descriptor)
                    f.write(line)
        except OSError as error:
            self._failed(str(self._path / name), error)

    def read(self, name: str) -> bytes:
        """Return the content of a file that we have written.

        Raises:
            OSError: there is no such file, or somebody else may have written it.
        """
        with self._inside(name, make=0) as (folder, last):
            fd = own_folder.open_file(last, os.O_RDONLY, inside=folder)
        with open(fd, "rb") as f:  # noqa: PTH123 (a descriptor)
            return f.read(_MAX_READ)

    def subfolder(self, name: str) -> Path:
        """Make a folder for ranks to write into, which nobody else may list, if the disk allows; return its path."""
        try:
            os.close(own_folder.open_folder(name, inside=self._open(), make=0o700))
        except OSError as error:
            self._failed(str(self._path / name), error)
        return self._path / name

    def write(self, name: str, content: str | bytes) -> Path | None:
        """Write a whole file atomically; return None if the disk refuses."""
        try:
            with self._inside(name) as (folder, last):
                whole_file.write(last, content.encode() if isinstance(content, str) else content, inside=folder)
        except OSError as error:
            self._failed(str(self._path / name), error)
            return None
        return self._path / name

    def write_archives(self, place: str, archives: Mapping[str, bytes]) -> None:
        """Write the archives of one capture, one for each node, into the folder `place` (ends with `/`, or empty)."""
        for node, archive in archives.items():
            self.write(f"{place}{node}.json.gz", gzip.compress(archive, 6))
