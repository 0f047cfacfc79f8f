"""Reads the table that torchrun prints when a worker fails: how each worker of its node ended, and which was first.

torchrun itself exits with 1 whatever happened, so that srun's line hides a worker's signal. With `@record` the worker's
last lines are here and nowhere else.
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
    """One worker, as torchrun saw it end.

    Attributes:
        code: Exit code; None if a signal ended it.
        signal: That signal's number, 0 for none.
        at_s: To a second, by the clock and in the time zone of its node, months taken to be equally long: only to be
            compared within one table.
        first: The first failure of its node that torchrun observed.
        words: Its traceback's last lines, where the program is decorated with `@record`.
    """

    rank: int
    pid: int
    code: int | None
    signal: int
    at_s: float = 0.0
    first: bool = False
    words: tuple[str, ...] = ()


def read_tables(lines: Iterable[str]) -> list[WorkerEnd]:
    """The workers of all tables in these lines; one whose lines are torn apart by other output is left out."""
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
