"""The incident folder beside the job's output: story, stacks, report.

Where the disk is full, that is reported once, and training goes on.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_robust.supervise.agent.clock import CLOCK, SystemClock

STORY_FILE = "story.jsonl"


def beside(output: Path | None, job: str, work_dir: Path) -> Path:
    """Where a job's folder is: beside its output file, else in its working directory."""
    parent = output.parent if output is not None else work_dir
    return parent / f"slurm-robust-{job}"


def of_run(chosen: str, outputs: Sequence[Path], job: str, work_dir: Path) -> Path:
    """Where the folder of a supervised run is: where its user wants it, else as `beside`."""
    return Path(chosen) / f"slurm-robust-{job}" if chosen else beside(outputs[0] if outputs else None, job, work_dir)


class IncidentFolder:
    """Writes into the folder, and prints the story on stderr too."""

    def __init__(self, path: Path, *, quiet: bool = False, clock: SystemClock = CLOCK) -> None:
        self.path = path
        self._quiet = quiet
        self._clock = clock
        self._failure_reported = False

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
        path = self.path / name
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as f:
                f.write(line)
        except OSError as error:
            self._failed(str(path), error)

    def subfolder(self, name: str) -> Path:
        """A folder for others to write into; made unless the disk refuses."""
        path = self.path / name
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._failed(str(path), error)
        return path

    def write(self, name: str, content: str | bytes) -> Path | None:
        """Write a whole file atomically; None where the disk refuses."""
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
        """Keep one capture: one archive for each node."""
        for node, archive in archives.items():
            self.write(f"{incident}/stacks-{round_number}/{node}.json.gz", gzip.compress(archive, 6))
