"""Reads from a line's start who printed it and when: labels of srun, torchrun and PyTorch, and times.

All functions work on bytes, and return places in the line, which hold for all lines with an equal key.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from typing import NamedTuple

from slurm_robust.diagnose.log.page import NOBODY, Speaker

_ESCAPE = rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
_ESCAPES = re.compile(_ESCAPE + rb"|[\x01-\x08\x0b-\x1f\x7f]")
_BLANK = rb"(?:[ \t]|" + _ESCAPE + rb"){0,20}"

_TASK = re.compile(_BLANK + rb"(?P<task>\d{1,7}): ?")
_HOST = re.compile(_BLANK + rb"(?P<host>[A-Za-z][A-Za-z0-9._-]{0,62}\d[A-Za-z0-9._-]{0,62}): ")
_LABEL = re.compile(
    _BLANK
    + rb"(?:\[rank(?P<rank>\d{1,7})\]:|\[\d{1,5},(?P<mpi>\d{1,7})\](?:<std(?:out|err)>)?:"
    + rb"|\[[A-Za-z_]{1,30}(?P<local>\d{1,5})\]:) ?"
)
_RANK_INSIDE = re.compile(
    rb"\[(?:Global |global )?[Rr]ank[ :=_]{0,2}(?P<a>\d{1,7})\]|\[PG [^\]]{0,100}?[Rr]ank (?P<b>\d{1,7})\]"
    rb"|\[rank(?P<c>\d{1,7})\]:"
)
_INSIDE_BYTES = 200
"""Labels and times further inside a line are about something else."""

_TIME = re.compile(
    rb"(?P<y>\d{4})[-/](?P<m>\d\d)[-/](?P<d>\d\d)[T _](?P<c>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?P<z>Z|[+-]\d\d:?\d\d)?"
    rb"|\b[IWEFC](?P<gm>\d?\d)(?P<gd>\d\d) (?P<gc>\d\d:\d\d:\d\d(?:\.\d{1,9})?)"
    rb"|\b(?P<um>\d\d)/(?P<ud>\d\d)/(?P<uy>\d{4}) (?P<uc>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    rb"|\b(?P<sm>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(?P<sd>\d{1,2}) (?P<sc>\d\d:\d\d:\d\d)"
)
_YEAR = re.compile(rb"\b((?:19[7-9]|20\d)\d)[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ENOUGH = 8
"""So many lines tell whether the lines of a file are labelled."""


class Prefix(NamedTuple):
    """The places of a line's labels.

    Attributes:
        text_at: The place at which the text begins, after all labels.
        start: The begin of the digits that tell the speaker.
        end: The end of these digits; equal to `start` if the line names no speaker.
    """

    text_at: int
    start: int
    end: int


def strip_escapes(line: bytes) -> bytes:
    """Return the line without colours, cursor movements and control characters."""
    return _ESCAPES.sub(b"", line)


def labels_of(lines: Sequence[bytes]) -> str:
    """Return `task` or `host` if nearly all of these lines begin with such a label; else empty.

    A number and a colon at the beginning of some lines may be anything.
    """
    told = [line for line in lines if line.strip()][:200]
    if len(told) < _ENOUGH:
        return ""
    for name, pattern in (("task", _TASK), ("host", _HOST)):
        if sum(pattern.match(line) is not None for line in told) >= 0.9 * len(told):
            return name
    return ""


def read_prefix(line: bytes, labels: str = "") -> Prefix:
    """Return the places of a line's labels; `labels` is the result of `labels_of` for its file."""
    at = start = end = 0
    outer = _TASK.match(line) if labels == "task" else _HOST.match(line) if labels == "host" else None
    if outer is not None:
        at, (start, end) = outer.end(), outer.span(1)
    sure = False
    while label := _LABEL.match(line, at):
        at = label.end()
        group = label.lastgroup or ""
        sure = sure or group != "local"
        # A local rank needs its task or node, too; a global rank is enough alone.
        start, end = (start if group == "local" and end else label.start(group)), label.end(group)
    inside = _RANK_INSIDE.search(line, at, at + _INSIDE_BYTES)
    if inside is not None and not sure:
        start, end = inside.span(inside.lastgroup or 0)
    return Prefix(at, start, end)


def read_speaker(line: bytes, prefix: Prefix, labels: str = "", default: Speaker = NOBODY) -> Speaker:
    """Return who printed this line; `default` if the line does not name a speaker."""
    if prefix.start == prefix.end:
        return default
    outer = _TASK.match(line) if labels == "task" else _HOST.match(line) if labels == "host" else None
    speaker, at = default, 0
    if outer is not None:
        at = outer.end()
        text = outer[1].decode("ascii", "replace")
        speaker = speaker._replace(task=int(text)) if labels == "task" else speaker._replace(host=text)
        if outer.end(1) == prefix.end:
            return speaker
    while label := _LABEL.match(line, at):
        at = label.end()
        group = label.lastgroup or ""
        if label.end(group) == prefix.end:
            number = int(label[group])
            return speaker._replace(local=number) if group == "local" else speaker._replace(rank=number)
    digits = line[prefix.start : prefix.end]
    return speaker._replace(rank=int(digits)) if digits.isdigit() else speaker


def has_time(line: bytes) -> bool:
    """Return whether a line shows when it was printed."""
    return _TIME.search(line, 0, _INSIDE_BYTES) is not None


def read_year(data: bytes) -> int | None:
    """Return the year of the first time in these lines that has a year; None if there is none."""
    found = _YEAR.search(data)
    return int(found[1]) if found is not None else None


def read_time(line: bytes, year: int) -> float | None:
    """Return when a line was printed, in seconds since the epoch, or None; `year` is for times without a year."""
    found = _TIME.search(line, 0, _INSIDE_BYTES)
    if found is None:
        return None
    if found["y"]:
        date, clock = (int(found["y"]), int(found["m"]), int(found["d"])), found["c"]
    elif found["gm"]:
        date, clock = (year, int(found["gm"]), int(found["gd"])), found["gc"]
    elif found["um"]:
        date, clock = (int(found["uy"]), int(found["um"]), int(found["ud"])), found["uc"]
    else:
        date, clock = (year, _MONTHS.index(found["sm"].decode()) + 1, int(found["sd"])), found["sc"]
    if not (1970 <= date[0] <= 9999 and 1 <= date[1] <= 12 and 1 <= date[2] <= 31):
        return None
    hours, minutes, seconds = clock.replace(b",", b".").split(b":")
    at_s = calendar.timegm((*date, int(hours), int(minutes), 0)) + float(seconds)
    zone = (found["z"] or b"Z").replace(b":", b"")
    if zone != b"Z":
        away_s = int(zone[1:3]) * 3600 + int(zone[3:5]) * 60
        at_s += away_s if zone[:1] == b"-" else -away_s
    return at_s
