"""Reads the job's own output files: progress lines, exits of tasks, the program's last lines. Never intercepts them.

Files are read from the end that they have at the start of the attempt. A path that is missing, or not a regular file,
is ignored.
"""

from __future__ import annotations

import os
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from slurm_robust.diagnose.lines import OURS, place_of, unlabelled
from slurm_robust.supervise.watch.log_steps import Counters

_CHUNK_BYTES = 1 << 20
_KEEP_LINES = 4000
"""Two or three lines for each of a thousand ranks, without stack frames."""
_LINE_MAX = 2000

_SLURMS = re.compile(r"(?:srun|slurmstepd\S*): ")
"""The beginning of a line of Slurm; `Job step 5.0 aborted` is not a step of the training."""

_EXIT = re.compile(r"srun: error: (?P<host>[A-Za-z0-9._\[\],-]+): tasks? (?P<tasks>[0-9,\-\[\]]+): (?P<how>.+?)\s*$")
_OOM = re.compile(r"Detected \d+ oom[-_ ]kill|oom[-_]kill event|srun: error: \S+: tasks? \S+: Out Of Memory")
"""Slurm's report of a kill for memory by the kernel or a cgroup. It does not match CUDA's error texts."""
_CANCELLED = re.compile(r"\*\*\* (?P<what>STEP|JOB) (?P<id>\S+) ON \S+ CANCELLED AT \S+(?P<why>.*)")
_ABORTED = re.compile(r"srun: (?:forcing job termination|Job step aborted: )")
"""srun's own message that its step is ended: at a signal of the user, or at an order of slurmctld."""
_TROUBLE = re.compile(r"srun: (?:error: |launch/slurm: )|NODE FAILURE")
"""After such a line srun ends its step for its own reason: a task that ended, a lost node, a broken connection."""
_FRAME_LABEL = re.compile(r"^(?:\s*\d+: )?(?:\[rank\d+\]: ?)?")
_MOST_FRAMES = 4096
_SIGNALS = {
    "Killed": 9,
    "Terminated": 15,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Floating point exception": 8,
    "Illegal instruction": 4,
    "Hangup": 1,
    "Interrupt": 2,
    "Trace/breakpoint trap": 5,
    "User defined signal 1": 10,
    "User defined signal 2": 12,
    "Broken pipe": 13,
    "Alarm clock": 14,
    "Out Of Memory": 9,
}


@dataclass(frozen=True)
class TaskExit:
    """A task that ended badly, by srun's report. `code` is None if a signal ended it."""

    task: int
    host: str
    code: int | None
    signal: int
    text: str


@dataclass
class NewOutput:
    """The facts in new lines of the output."""

    step: int | None = None
    """The training's step, if any counter of the log has gone on: a repeated number is not progress."""
    exits: list[TaskExit] = field(default_factory=list)
    oom: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    """Steps (`5.0`) and jobs (`5`) that were ended from outside: by a person, a time limit, a preemption."""
    aborted: bool = False
    """An srun, which the line does not name, was told to end its step, and had not reported a fault before."""


def tasks(text: str) -> list[int]:
    """Return the numbers in srun's folded list `0-2,5` (at most 65,536 of them)."""
    out: list[int] = []
    for part in text.strip("[]").split(","):
        low, _, high = part.partition("-")
        if low.isdecimal() and (not high or high.isdecimal()):
            out.extend(range(int(low), min(int(high or low), int(low) + 65535) + 1))
    return out[:65536]


def read_exit(line: str) -> list[TaskExit]:
    """Return the exits in one line of srun."""
    match = _EXIT.search(line)
    if match is None:
        return []
    how = match["how"]
    code_match = re.match(r"Exited with exit code (\d+)", how)
    code = int(code_match[1]) if code_match else None
    signal = 0
    if code is None:
        for name, number in _SIGNALS.items():
            if how.startswith(name):
                signal = number
                break
        else:
            return []
    return [TaskExit(t, match["host"], code, signal, how) for t in tasks(match["tasks"])]


class OutputFile:
    """One output file, read as it grows: from its present end on, or from `read_from`."""

    def __init__(
        self,
        path: Path,
        own_pattern: re.Pattern[str] | None = None,
        counters: Counters | None = None,
        read_from: int | None = None,
    ) -> None:
        self.path = path
        self._own = own_pattern
        self._counters = counters or Counters()
        self._rest = b""
        self._trouble = False
        self.lines: deque[tuple[float, str]] = deque(maxlen=_KEEP_LINES)
        """The last lines and when each was read. Of a traceback's frames, only the innermost of the program itself."""
        self._frames: dict[str, str] = {}
        """That frame of the traceback that is being read, by the label of its lines."""
        try:
            self._offset = path.stat().st_size if read_from is None else read_from
        except OSError:
            self._offset = 0

    def poll(self, now_s: float) -> NewOutput:
        """Read what is new in the file."""
        found = NewOutput()
        try:
            with self.path.open("rb") as f:
                size = os.fstat(f.fileno()).st_size
                if size < self._offset:  # truncated: a new file under the old name
                    self._offset, self._rest = 0, b""
                f.seek(max(self._offset, size - _CHUNK_BYTES))
                data = f.read(_CHUNK_BYTES)
                self._offset = f.tell()
        except OSError:
            return found
        if not data:
            return found
        # A carriage return ends a progress bar's line.
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[-_LINE_MAX:]
        for raw in lines:
            line = _without_ours(raw)
            if not line.strip():
                continue
            self._keep(line, now_s)
            self._note_step(found, line, now_s)
            found.exits.extend(read_exit(line))
            gone = _CANCELLED.search(line)
            if gone is not None and "NODE FAILURE" not in gone["why"]:
                found.cancelled.append(gone["id"])
            self._trouble = self._trouble or _TROUBLE.search(line) is not None
            found.aborted = found.aborted or (not self._trouble and _ABORTED.search(line) is not None)
            if _OOM.search(line):
                found.oom.append(line)
        # A bar's line only ends when the next bar is drawn. If it were only read then, a line printed after a hung bar
        # would count as progress.
        self._note_step(found, _without_ours(self._rest), now_s, whole=False)
        return found

    def _keep(self, line: str, now_s: float) -> None:
        """Keep a line. Frames name errors that never happened, and would push out the last lines of other ranks."""
        if _is_frame(line):
            text = unlabelled(line)
            if place_of(text) and len(self._frames) < _MOST_FRAMES:
                self._frames[line.removesuffix(text)] = line
            return
        if self._frames:
            innermost = self._frames.pop(line.removesuffix(unlabelled(line)), None)
            if innermost is not None:
                self.lines.append((now_s, innermost))
        self.lines.append((now_s, line))

    def _note_step(self, found: NewOutput, line: str, now_s: float, *, whole: bool = True) -> None:
        told = _SLURMS.split(line, maxsplit=1)[0]
        if self._counters.progress(told, self._own, whole=whole, now_s=now_s) is not None:
            found.step = self._counters.training.step


def _is_frame(line: str) -> bool:
    """Return whether a line only shows where a stack stood: its place, or the code there."""
    rest = _FRAME_LABEL.sub("", line, count=1)
    return rest.startswith(("    ", '  File "', "frame #"))


def _without_ours(raw: bytes) -> str:
    """The part of a line that others have written; ours often follows a progress bar without a newline."""
    return OURS.split(raw[:_LINE_MAX].decode("utf-8", "replace"), maxsplit=1)[0]
