"""Puts tracebacks together from the lines of one speaker; each is kept once however many ranks print it.

It knows Python's tracebacks with their chains and groups, frames of C++ that follow them, and faulthandler's output.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

import xxhash

from slurm_robust.diagnose.log.page import OTHERS, PageTraceback, Place, Speaker, SpeakerLines

_HEAD_LINES, _TAIL_LINES = 80, 160
"""How many lines of a very long traceback are kept: of its beginning and of its end."""
_LINE_CHARS = 1000
_FOREIGN_LINES = 30
"""If more lines of others than this are between its own lines, it counts as torn apart."""
_BLANKS = 2
_OPEN_BYTES = 8 << 20
_SPEAKER_BYTES = 700

_HEADER = "Traceback (most recent call last):"
_NESTED = "Original Traceback"
"""Within the message of an exception that a data loader's worker handed on."""
_OPENER = re.compile(r"Fatal Python error: |terminate called |Exception raised from |Stack dump:")
_CHAIN = re.compile(r"(?:During handling of the above|The above exception was)\b")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::(?:\s|$)|\s*$)|\(most recent|Traceback ")
_TAIL = re.compile(
    r"frame #\d+|Exception raised from |CUDA kernel errors|For debugging consider|Compile with|Device-side|Last error"
    r"|ncclInternal|ncclSystem|ncclUnhandled|Duplicate GPU|(?:Current thread|Thread) 0x|Extension modules"
    r"|Python runtime|Search for|\"\"\"|what\(\)|\^+|--+"
)


class LineKind(Enum):
    """The kinds of lines in a traceback."""

    HEADER = auto()
    NESTED = auto()
    OPENER = auto()
    BLANK = auto()
    INDENTED = auto()
    CHAIN = auto()
    EXCEPTION = auto()
    TAIL = auto()
    OTHER = auto()


def kind_of(text: str) -> LineKind:
    """Return the kind of a decoded line without its label."""
    if not text.strip():
        return LineKind.BLANK
    if text.rstrip().endswith(_HEADER):
        if text.startswith(_NESTED):
            return LineKind.NESTED
        return LineKind.OPENER if text[0] in " \t|" or "Exception Group" in text else LineKind.HEADER
    if text[0] in " \t|":
        return LineKind.INDENTED
    for kind, pattern in ((LineKind.OPENER, _OPENER), (LineKind.CHAIN, _CHAIN), (LineKind.TAIL, _TAIL)):
        if pattern.match(text):
            return kind
    return LineKind.EXCEPTION if _EXCEPTION.match(text) else LineKind.OTHER


def may_open(line: bytes) -> bool:
    """Return whether a raw line may begin a traceback: a quick check before `kind_of`."""
    return (
        b"(most recent call last)" in line
        or b"Fatal Python error" in line
        or b"terminate called" in line
        or b"Exception raised from" in line
    )


class OpenTraceback:
    """The lines of a traceback that has not ended yet."""

    def __init__(self, first: Place) -> None:
        self.first = first
        self.size_bytes = 0
        self.idle = False
        """Whether no line has come since the last chunk."""
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._count = 0
        self._digest = xxhash.xxh3_128()
        self._depth = 0
        """How many headers have no exception yet: more than one if ranks without labels print at the same time."""
        self._chained = False
        self._blanks = self._foreign = 0

    @property
    def whole(self) -> bool:
        """Whether it ended as tracebacks do."""
        return self._depth == 0 and not self._chained

    @property
    def identity(self) -> bytes:
        """Equal for tracebacks that differ in numbers and addresses only."""
        return self._digest.digest()

    @property
    def lines(self) -> tuple[str, ...]:
        """Its lines, with a line that says how many are left out."""
        left_out = self._count - len(self._head) - len(self._tail)
        return (*self._head, *([f"... {left_out} lines are left out ..."] if left_out else []), *self._tail)

    @property
    def torn(self) -> bool:
        """Whether too many lines of others are between its own lines."""
        return self._foreign > _FOREIGN_LINES

    def takes(self, kind: LineKind) -> bool | None:
        """Return whether a line of this kind is its own; None if the line shows that the traceback has ended."""
        if kind is LineKind.HEADER:
            return True if self._depth or self._chained or not self._count else None
        if self._depth:
            return kind in (LineKind.INDENTED, LineKind.EXCEPTION, LineKind.BLANK, LineKind.OPENER, LineKind.NESTED)
        if kind is LineKind.BLANK:
            return True if self._blanks < _BLANKS else None
        if kind in (LineKind.CHAIN, LineKind.TAIL, LineKind.INDENTED, LineKind.OPENER, LineKind.NESTED):
            return True
        return False if self._chained else None

    def foreign(self) -> None:
        """Count a line of another speaker between its own lines."""
        self._foreign += 1

    def add(self, kind: LineKind, text: str, template: str) -> None:
        """Take a line for which `takes` is true."""
        self.idle = False
        self._blanks = self._blanks + 1 if kind is LineKind.BLANK else 0
        if kind is LineKind.BLANK:
            return
        if kind in (LineKind.HEADER, LineKind.NESTED):
            self._depth, self._chained = self._depth + 1, False
        elif kind is LineKind.EXCEPTION and self._depth:
            self._depth -= 1
        elif kind is LineKind.CHAIN:
            self._chained = True
        self._digest.update(template.encode("utf-8", "replace") + b"\n")
        self._count += 1
        text = text[:_LINE_CHARS]
        if len(self._head) < _HEAD_LINES:
            self._head.append(text)
        else:
            self._tail.append(text)
        self.size_bytes += len(text) + 100


@dataclass
class _StoredTraceback:
    lines: tuple[str, ...]
    whole: bool
    size_bytes: int
    speakers: dict[Speaker, tuple[int, Place, Place]] = field(default_factory=dict)

    def count(self, speaker: Speaker, place: Place, room: bool) -> int:
        """Count one more equal traceback; return how many bytes that took. Without room, new speakers are `OTHERS`."""
        speaker = speaker if room or speaker in self.speakers else OTHERS
        grown = 0 if speaker in self.speakers else _SPEAKER_BYTES
        times, first, _ = self.speakers.get(speaker, (0, place, place))
        self.speakers[speaker] = times + 1, first, place
        self.size_bytes += grown
        return grown


class TracebackStore:
    """All tracebacks, within a budget of memory: the first ones for ever, and the last ones.

    Attributes:
        open: Speaker → its traceback in the present file that has not ended.
        dropped: How many tracebacks were forgotten.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._half_bytes = budget_bytes // 2
        self.open: dict[Speaker, OpenTraceback] = {}
        self._open_bytes = 0
        self._first: dict[bytes, _StoredTraceback] = {}
        self._recent: dict[bytes, _StoredTraceback] = {}
        self._first_bytes = self._recent_bytes = 0
        self.dropped = 0

    def feed(self, speaker: Speaker, kind: LineKind, text: str, template: str) -> bool:
        """Give a line to the open traceback of its speaker; return whether it was taken."""
        found = self.open.get(speaker)
        if found is None:
            return False
        takes = found.takes(kind)
        if takes:
            before = found.size_bytes
            found.add(kind, text, template)
            self._open_bytes += found.size_bytes - before
            if self._open_bytes > _OPEN_BYTES:
                self.close_all()
            return True
        found.foreign()
        if takes is None or found.torn:
            self.close(speaker)
        return False

    def begin(self, speaker: Speaker, kind: LineKind, text: str, template: str, place: Place) -> None:
        """Open a traceback with its first line."""
        self.close(speaker)
        self.open[speaker] = OpenTraceback(place)
        self.feed(speaker, kind, text, template)

    def close(self, speaker: Speaker) -> None:
        """Close the open traceback of a speaker and keep it as it is."""
        done = self.open.pop(speaker, None)
        if done is None:
            return
        self._open_bytes -= done.size_bytes
        identity = done.identity
        kept = self._first.get(identity)
        if kept is not None or self._first_bytes < self._half_bytes:
            if kept is None:
                kept = self._first[identity] = _StoredTraceback(done.lines, done.whole, done.size_bytes + 1000)
                self._first_bytes += kept.size_bytes
            self._first_bytes += kept.count(speaker, done.first, self._first_bytes < self._half_bytes * 3 // 2)
            return
        kept = self._recent.pop(identity, None)
        if kept is None:
            kept = _StoredTraceback(done.lines, done.whole, done.size_bytes + 1000)
            self._recent_bytes += kept.size_bytes
        self._recent[identity] = kept  # the last one is at the end
        self._recent_bytes += kept.count(speaker, done.first, self._recent_bytes < self._half_bytes)
        while self._recent_bytes > self._half_bytes and len(self._recent) > 1:
            oldest = self._recent.pop(next(iter(self._recent)))
            self._recent_bytes -= oldest.size_bytes
            self.dropped += sum(times for times, _, _ in oldest.speakers.values())

    def close_idle(self) -> None:
        """Close tracebacks that got no line since the last call: their rank fell silent."""
        for speaker in [speaker for speaker, trace in self.open.items() if trace.idle]:
            self.close(speaker)
        for trace in self.open.values():
            trace.idle = True

    def close_all(self) -> None:
        """Close all tracebacks at the end of the file."""
        for speaker in list(self.open):
            self.close(speaker)

    def __iter__(self) -> Iterator[PageTraceback]:
        for kept in (*self._first.values(), *self._recent.values()):
            speakers = tuple(SpeakerLines(who, *found) for who, found in kept.speakers.items())
            first = min((s.first for s in speakers), key=lambda place: place.order)
            last = max((s.last for s in speakers), key=lambda place: place.order)
            yield PageTraceback(kept.lines, speakers, sum(s.count for s in speakers), first, last, kept.whole)
