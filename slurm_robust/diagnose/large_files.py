"""Reads logs of any size: one pass in bounded memory, in which the rules read only lines that may mean something.

A log repeats itself, so whether a line may mean something is decided once for all lines that only differ in digits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from slurm_robust.diagnose.findings import READ_ANYWAY, FindingsReader, LogFinding, Matcher
from slurm_robust.diagnose.lines import is_code, place_of, unlabelled
from slurm_robust.diagnose.log.lines import Chunk, LogReader
from slurm_robust.diagnose.log.prefix import strip_escapes
from slurm_robust.diagnose.raised import BEGINS

_KEYS, _KEY_BYTES = 1 << 16, 400
"""So many kinds of lines are remembered at a time, and only lines up to this length."""
_RULES_READ = 4000
_LINE_BYTES = 50_000
_IN_TRACEBACK = 300
"""So many lines after the beginning of a traceback are read: lines of other ranks may stand in between."""
_FINDINGS = 2000
_OF_EACH_KIND = 4
_ENDS = 4000
"""So many of the first and of the last lines that were read are kept, for use beside the findings."""
_OFTEN = 8
"""So many lines with one key are read: the first lines decide, and lines within a traceback are always read."""
_PLACES = (b'File "', b"frame #")
_MARKS = tuple(mark.encode() for mark in READ_ANYWAY)


@dataclass
class ScannedLog:
    """The findings of rules in large files.

    Attributes:
        found: The first findings of each kind, with the place of the line in `lines` as number.
        lines: File, line number and text: of all findings, and of the first and last lines that may mean something.
        read: File that was read to its end → how many lines it has.
        problems: A sentence for each file that was not read to its end.
    """

    found: list[LogFinding] = field(default_factory=list)
    lines: list[tuple[str, int, str]] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class _Key:
    """The knowledge about lines that only differ in digits.

    Attributes:
        quiet: No rule can match one of these lines.
        left: After so many more lines they count as quiet; -1 if each has to be read, because digits may matter.
        place: The lines show a place of a stack.
    """

    __slots__ = ("left", "place", "quiet")

    def __init__(self, *, quiet: bool, left: int, place: bool = False) -> None:
        self.quiet = quiet
        self.left = left
        self.place = place


_QUIET = _Key(quiet=True, left=-1)


class _Scan:
    """One pass over files."""

    def __init__(self, matcher: Matcher) -> None:
        self._reader = FindingsReader(matcher)
        self._matcher = matcher
        self._enough: set[str] = set()
        """Rules with a finding that no later finding can outweigh, except findings within tracebacks."""
        self._keys: dict[bytes, _Key] = {}
        self._number = 0
        """The number of the first line of a chunk, counted over all files."""
        self._place_at = -2
        """The last line outside of tracebacks that shows a place."""
        self._until = -1
        """All lines up to this number are read."""
        self._first: list[_LogLine] = []
        self._last: deque[_LogLine] = deque(maxlen=_ENDS)
        self._of_findings: dict[int, _LogLine] = {}

    def of(self, files: Iterable[Path]) -> ScannedLog:
        """Read all these files."""
        scanned = ScannedLog()
        for path in files:
            log, lines = LogReader(path), 0
            for chunk in log.chunks():
                self._read_chunk(str(path), chunk)
                lines += len(chunk.lines)
            self._until = -1
            if log.problem:
                scanned.problems.append(f"{path}: {log.problem}")
            else:
                scanned.read[str(path)] = lines
        return self._result(scanned)

    def _read_chunk(self, path: str, chunk: Chunk) -> None:
        find, lines, first = self._keys.get, chunk.lines, self._number
        for index, key in enumerate(chunk.keys):
            known = find(key) or self._learn(key)
            if known.quiet and self._until < first + index:
                continue
            self._read(_LogLine(first + index, path, chunk.place(index)[0], _text(lines[index])), known)
        self._number += len(lines)
        if len(self._reader.found) > _FINDINGS:
            self._forget_repeated()

    def _learn(self, key: bytes) -> _Key:
        """Look closely at the first line with this key."""
        known = self._look(key[:_RULES_READ])
        if len(key) <= _KEY_BYTES:
            if len(self._keys) >= _KEYS:
                self._keys.clear()
            self._keys[key] = known
        return known

    def _look(self, key: bytes) -> _Key:
        if key.isascii() and b"\x1b" not in key:
            line, low = key, key.lower()
        else:
            text = _text(key)
            line, low = text.encode(), text.lower().encode()
        places = self._matcher.places(low)
        if not places:
            return _QUIET
        for mark in _MARKS if min(places) < 0 else ():
            if mark in line:
                place = mark in _PLACES and place_of(unlabelled(line.decode())) is not None
                return _Key(quiet=False, left=-1, place=place)
        rule, sure = self._matcher.match_key(unlabelled(line.decode()), places)
        if not sure:
            return _Key(quiet=False, left=-1)
        return _QUIET if rule is None or rule.id in self._enough else _Key(quiet=False, left=_OFTEN)

    def _read(self, line: _LogLine, known: _Key) -> None:
        if self._until < line.number and self._shows_place(line, known):
            return
        reader, count, attempt = self._reader, len(self._reader.found), self._reader.attempt
        reader.read(line.number, line.text)
        if reader.attempt != attempt:  # what was enough of one attempt is not of the next
            self._enough.clear()
            self._keys.clear()
        if len(reader.found) > count:
            self._of_findings[line.number] = line
            newest = reader.found[-1]
            if not (newest.mild or newest.in_traceback or newest.may_open):
                self._enough.add(newest.rule.id)
        if len(self._first) < _ENDS:
            self._first.append(line)
        else:
            self._last.append(line)
        if BEGINS in line.text:
            self._until = line.number + _IN_TRACEBACK
        if known.left > 0:
            known.left -= 1
            known.quiet = not known.left

    def _shows_place(self, line: _LogLine, known: _Key) -> bool:
        """Return whether the line is a place of a stack outside tracebacks, or the code there, and so tells nothing."""
        if known.place or (line.number == self._place_at + 1 and is_code(unlabelled(line.text))):
            self._place_at = line.number
            return True
        return False

    def _forget_repeated(self) -> None:
        self._reader.forget_repeated(_OF_EACH_KIND)
        kept = {one.number for one in self._reader.found}
        self._of_findings = {number: line for number, line in self._of_findings.items() if number in kept}

    def _result(self, scanned: ScannedLog) -> ScannedLog:
        self._reader.finish()
        kept = {line.number: line for line in (*self._first, *self._last, *self._of_findings.values())}
        scanned.found = [one for one in self._reader.found if one.number in kept]
        order = sorted(kept)
        place = {number: at for at, number in enumerate(order)}
        scanned.lines = [(kept[number].path, kept[number].line, kept[number].text) for number in order]
        scanned.found = [replace(one, number=place[one.number]) for one in scanned.found]
        return scanned


class _LogLine(NamedTuple):
    """A line that may mean something: its number among all lines, and its file and line number."""

    number: int
    path: str
    line: int
    text: str


def scan(files: Iterable[Path], matcher: Matcher) -> ScannedLog:
    """Read files of any size, as one stream in the order in which they are given."""
    return _Scan(matcher).of(files)


def _text(line: bytes) -> str:
    text = line[:_LINE_BYTES].decode("utf-8", "replace")
    return strip_escapes(line[:_LINE_BYTES]).decode("utf-8", "replace") if "\x1b" in text else text
