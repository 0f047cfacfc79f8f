"""Reads torchrun's table of failed workers: how each worker of its node ended, and which one failed first.

torchrun itself exits with 1 after any failure, so srun's line does not show a worker's signal. With `@record`, only
this table has the worker's last lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

_TASK_LABEL = re.compile(r"^\s*\d{1,7}: ")
_TITLE = re.compile(r"^(?:Failures:|Root Cause \((first observed failure)\):)\s*$")
_FIELD = re.compile(r"^  (time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)$")
_RANK = re.compile(r"(\d{1,7}) \(local_rank: \d+\)")
_EXIT = re.compile(r"(-?\d{1,4}) \(pid: (\d{1,10})\)")
_TIME = re.compile(r"(\d+)-(\d+)-(\d+)_(\d+):(\d+):(\d+)")
_RULE = re.compile(r"^[-=]{20,}\s*$")
_LABEL = re.compile(r"^\[\d+\]:\s*$")


@dataclass(frozen=True)
class WorkerEnd:
    """The end of one worker, as torchrun saw it.

    Attributes:
        code: Exit code; None if a signal ended the worker.
        signal: Number of that signal, 0 for none.
        at_s: Time in whole seconds, by the clock and in the time zone of its node, months taken to be equally long.
            Only times of one table can be compared.
        first: Whether it is the first failure of its node that torchrun observed.
        words: The last lines of its traceback, if the program is decorated with `@record`.
    """

    rank: int
    pid: int
    code: int | None
    signal: int
    at_s: float = 0.0
    first: bool = False
    words: tuple[str, ...] = ()


def read_tables(lines: Iterable[str]) -> list[WorkerEnd]:
    """Read the workers of all tables in these lines, without workers whose lines are torn apart by other output."""
    found: list[WorkerEnd] = []
    fields: dict[str, str] = {}
    words: list[str] = []
    inside = first = False

    def close() -> None:
        end = _worker(fields, first)
        if end is not None:
            found.append(replace(end, words=tuple(words)))
        fields.clear()
        words.clear()

    for raw in lines:
        line = _TASK_LABEL.sub("", raw, count=1)
        if title := _TITLE.match(line):
            close()
            inside, first = True, title[1] is not None
        elif not inside:
            continue
        elif _RULE.match(line) or _LABEL.match(line):
            close()
            inside = not line.startswith("=")
        elif "traceback" not in fields and (field := _FIELD.match(line)):
            fields[field[1]] = field[2]
        elif "traceback" in fields and line.startswith("  "):
            words.append(line[2:])
    close()
    return found


def _worker(fields: dict[str, str], first: bool) -> WorkerEnd | None:
    rank, ended = _RANK.match(fields.get("rank", "")), _EXIT.match(fields.get("exitcode", ""))
    if rank is None or ended is None:
        return None
    number, at_s = int(ended[1]), 0.0
    if clock := _TIME.match(fields.get("time", "")):
        year, month, day, hour, minute, second = map(int, clock.groups())
        at_s = float((((year * 12 + month) * 31 + day) * 24 + hour) * 3600 + minute * 60 + second)
    code = number if number >= 0 else None
    return WorkerEnd(int(rank[1]), int(ended[2]), code, max(0, -number), at_s, first)
