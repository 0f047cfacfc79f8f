"""Chooses the lines of a log for which a question has room: the most telling lines, lines around them, the last lines.

Pure. The page shows masked lines only; their numbers and plain texts in the log are kept beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from slurm_robust.core.text import printable
from slurm_robust.diagnose.lines import plain
from slurm_robust.hint.masking import mask_lines

AROUND = 8
"""How many lines before and after a telling line are taken."""
MAX_TELLING = 24
"""How many telling lines of each file are kept; a page of many files has room for fewer."""
LAST_LINES = 200
"""Of each file; fewer fit."""
KEY_LINES = 60
"""How many lines before a window are read, but not shown, to notice a key that begins there."""
MAX_LINE_CHARS = 500
MAX_KEPT_LINES = 5_000
_PER_LINE_BYTES = 8
"""Of a line's number and end on the page."""


@dataclass(frozen=True)
class PageLine:
    """A line of the page.

    Attributes:
        number: The line's place among the lines of all files.
        text: The line, masked and cut.
        original: The plain line, which never leaves the machine.
    """

    number: int
    text: str
    original: str


@dataclass(frozen=True)
class LogPage:
    """Lines in the order of the log; there is a gap if the numbers of two lines are not consecutive."""

    lines: tuple[PageLine, ...]


class PageLines:
    """The lines from which a page may be made: of each file, those near telling lines and the end."""

    def __init__(self) -> None:
        self._lines: dict[int, str] = {}
        self._last_of_files: list[int] = []
        self._telling: list[list[int]] = []

    def add(self, lines: Sequence[str], telling: Sequence[int], first: int) -> None:
        """Keep the lines of one file that a page may need; the file's first line has the number `first`.

        `telling` has the places of its most telling lines among `lines`, the best first.
        """
        windows = [range(place - AROUND - KEY_LINES, place + AROUND + 1) for place in telling[:MAX_TELLING]]
        self._telling.append([first + place for place in telling[:MAX_TELLING]])
        windows.append(range(len(lines) - LAST_LINES - KEY_LINES, len(lines)))
        wanted = sorted({place for window in windows for place in window if 0 <= place < len(lines)})
        for place in wanted:
            if len(self._lines) < MAX_KEPT_LINES:
                self._lines[first + place] = plain(lines[place])
        self._last_of_files.append(first + len(lines) - 1)

    def page(self, names: Iterable[str], limit_bytes: int) -> LogPage:
        """Return the most telling lines that fit, then lines around them, then the ends of the files."""
        masked = self._masked(names)
        chosen: set[int] = set()
        used = 0
        for number in self._by_worth():
            if number in chosen or not masked.get(number, "").strip():
                continue
            size = len(masked[number].encode("utf-8", "replace")) + _PER_LINE_BYTES
            if used + size > limit_bytes:
                break
            used += size
            chosen.add(number)
        return LogPage(tuple(PageLine(n, masked[n], self._lines[n]) for n in sorted(chosen)))

    def _by_worth(self) -> Iterator[int]:
        # The best line of each file comes before the second best of any file.
        telling = [number for best in zip_longest(*self._telling) for number in best if number is not None]
        yield from telling
        for number in telling:
            yield from range(number - AROUND, number + AROUND + 1)
        for back in range(LAST_LINES):
            yield from (last - back for last in self._last_of_files)

    def _masked(self, names: Iterable[str]) -> dict[int, str]:
        numbers = sorted(self._lines)
        # Lines before and after a gap must not be joined.
        texts: list[str] = []
        places: dict[int, int] = {}
        for number in numbers:
            if number - 1 not in self._lines:
                texts.append("")
            places[number] = len(texts)
            texts.append(self._lines[number])
        masked = mask_lines(texts, names)
        return {number: _printable(masked[place])[:MAX_LINE_CHARS] for number, place in places.items()}


def _printable(text: str) -> str:
    return printable(text, " ")
