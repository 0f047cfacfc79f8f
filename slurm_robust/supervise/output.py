"""What the job's own output files say: progress lines, exits of tasks, the program's last words. Never intercepted.

Files are read from where they stood when the attempt began; a file that is not there, or is no file, says nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_KEEP_LINES = 200
_LINE_MAX = 2000

_PROGRESS = [
    re.compile(p)
    for p in (
        r"\biteration\s+(?P<step>\d+)\s*/\s*\d+",  # Megatron-LM
        r"\b(?:global_)?step[\s:=]+(?P<step>\d+)\b",  # Lightning, torchtitan, DeepSpeed, own loops
        r"\bstep\s+(?P<step>\d+)\s*/\s*\d+",
        r"['\"]global_step['\"]\s*:\s*(?P<step>\d+)",  # Hugging Face
        r"\biter(?:ation)?[\s:=]+(?P<step>\d+)\b",
        r"\|\s*(?P<step>\d+)/\d+\s*\[",  # tqdm bars: Lightning, HF, NeMo
    )
]
"""Shapes of progress lines, most telling first."""

_EXIT = re.compile(r"srun: error: (?P<host>[A-Za-z0-9._\[\],-]+): tasks? (?P<tasks>[0-9,\-\[\]]+): (?P<how>.+?)\s*$")
_OOM = re.compile(r"Detected \d+ oom[-_ ]kill|oom[-_]kill event|srun: error: \S+: tasks? \S+: Out Of Memory")
"""The kernel's or cgroup's kill for memory, in Slurm's words; CUDA's own error text is another thing."""
_CANCELLED = re.compile(r"\*\*\* (?P<what>STEP|JOB) (?P<id>\S+) ON \S+ CANCELLED AT \S+(?P<why>.*)")
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
    """A task that srun said ended badly. `code` is None where a signal ended it."""

    task: int
    host: str
    code: int | None
    signal: int
    text: str


@dataclass
class Findings:
    """What new lines told."""

    step: int | None = None
    steps: list[int] = field(default_factory=list)
    """All of them in their order, where a line does not count by epochs."""
    exits: list[TaskExit] = field(default_factory=list)
    oom: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    """Steps (`5.0`) and jobs (`5`) that somebody ended: a person, a time limit, a preemption."""


def tasks(text: str) -> list[int]:
    """The numbers in srun's folded list `0-2,5` (at most 65,536 of them)."""
    out: list[int] = []
    for part in text.strip("[]").split(","):
        low, _, high = part.partition("-")
        if low.isdecimal() and (not high or high.isdecimal()):
            out.extend(range(int(low), min(int(high or low), int(low) + 65535) + 1))
    return out[:65536]


def read_exit(line: str) -> list[TaskExit]:
    """The exits that one line of srun's tells of."""
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


def read_step(line: str, own: re.Pattern[str] | None = None) -> int | None:
    """The step that a line reports, None where it reports none."""
    for pattern in [own] if own is not None else _PROGRESS:
        match = pattern.search(line)
        if match:
            return int(match["step"])
    return None


class OutputFile:
    """One output file, read as it grows."""

    def __init__(self, path: Path, own_pattern: re.Pattern[str] | None = None) -> None:
        self.path = path
        self._own = own_pattern
        self._rest = b""
        self.lines: deque[str] = deque(maxlen=_KEEP_LINES)
        try:
            self._offset = path.stat().st_size
        except OSError:
            self._offset = 0

    def poll(self) -> Findings:
        """Read what is new."""
        found = Findings()
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
        # A carriage return ends a progress bar's line.
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[-_LINE_MAX:]
        for raw in lines:
            line = raw[:_LINE_MAX].decode("utf-8", "replace")
            if not line.strip():
                continue
            self.lines.append(line)
            step = read_step(line, self._own)
            if step is not None:
                found.step = step
                if "epoch" not in line.lower():
                    found.steps.append(step)
            found.exits.extend(read_exit(line))
            gone = _CANCELLED.search(line)
            if gone is not None and "NODE FAILURE" not in gone["why"]:
                found.cancelled.append(gone["id"])
            if _OOM.search(line):
                found.oom.append(line)
        return found


def own_output_files(process: int | str = "self") -> list[Path]:
    """The files that a process's stdout and stderr go to (in a batch job: the job's own output files)."""
    out: list[Path] = []
    for fd in (1, 2):
        try:
            link = Path(f"/proc/{process}/fd/{fd}")
            if stat.S_ISREG(link.stat().st_mode):
                path = link.readlink()
                if path not in out:
                    out.append(path)
        except OSError:
            continue
    return out
