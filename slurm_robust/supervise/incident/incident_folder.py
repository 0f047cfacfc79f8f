"""The incident folder beside the job's output: story, stacks, report. A full disk is said once; training goes on."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STORY_FILE = "story.jsonl"


def beside(output: Path | None, job: str, work_dir: Path) -> Path:
    """Where a job's folder is: beside its output file, else in its working directory."""
    parent = output.parent if output is not None else work_dir
    return parent / f"slurm-robust-{job}"


class Folder:
    """Writes into the folder, and tells the story on stderr too."""

    def __init__(self, path: Path, *, quiet: bool = False) -> None:
        self.path = path
        self._quiet = quiet
        self._complained = False

    def _failed(self, what: str, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            self._print(f"cannot write {what}: {error}; training goes on, the story is on stderr only")

    def _print(self, text: str) -> None:
        if not self._quiet:
            # One line, behind our mark: the job's output is read for its progress, and what is ours must not count.
            text = "; ".join(filter(None, map(str.strip, text.splitlines())))
            # A job whose own output is full or gone must not end the supervisor.
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"srobust: {time.strftime('%H:%M:%S')} {text}\n")
                sys.stderr.flush()

    def tell(self, kind: str, text: str, **data: Any) -> None:
        """Add a line to the story. Pages are written before the line that tells of them: who reads it reads them next.

        Args:
            kind: A stable word (`suspected`, `captured`, `decided`, …), for tools.
            text: The line, for people.
            data: What tools want to know besides.
        """
        self._print(text)
        line = json.dumps({"at_s": round(time.time(), 3), "kind": kind, "text": text, **data}, default=str)
        self.append(STORY_FILE, line + "\n")

    def append(self, name: str, line: str) -> None:
        """Add a line to a file, in one write."""
        path = self.path / name
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as f:
                f.write(line)
        except OSError as error:
            self._failed(str(path), error)

    def folder(self, name: str) -> Path:
        """A folder for others to write into, made where the disk lets us."""
        path = self.path / name
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._failed(str(path), error)
        return path

    def write(self, name: str, content: str | bytes) -> Path | None:
        """Write a file whole, atomically; None where the disk does not let us."""
        path = self.path / name
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._failed(str(path), error)
            return None
        return path

    def write_archives(self, incident: str, round_number: int, archives: Mapping[str, bytes]) -> None:
        """Keep one capture: an archive a node."""
        for node, archive in archives.items():
            self.write(f"{incident}/stacks-{round_number}/{node}.json.gz", gzip.compress(archive, 6))
