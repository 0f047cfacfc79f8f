"""What the quickstart prints: lines with their times, one status line that is redrawn, tables."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence

from quickstart_story import ASTRAY, Event

BOLD, RED, GREEN, YELLOW, DIM = "1", "31", "32", "33", "2"
COLOURS = {
    **dict.fromkeys(("fault", "suspect", "quarantine", "drained"), RED),
    **dict.fromkeys(("suspected", "captured", "still"), YELLOW),
    **dict.fromkeys(("seat", "requeued", "running", "resumed", "finished"), GREEN),
    **dict.fromkeys(ASTRAY, RED),
}


class Screen:
    """Prints lines with their time, and on a terminal one status line that is redrawn."""

    def __init__(self) -> None:
        self.began_s = time.time()
        self._terminal = sys.stdout.isatty()
        self._colours = self._terminal and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ
        self._moving = False

    def paint(self, text: str, colour: str) -> str:
        """The text in a colour, if colours are on."""
        return f"\033[{colour}m{text}\033[0m" if self._colours and colour else text

    def say(self, text: str = "", colour: str = "") -> None:
        """A line without a time."""
        self.moving("")
        print(self.paint(text, colour), flush=True)

    def head(self, at_s: float) -> str:
        """The beginning of a line with a time: clock, seconds since the start."""
        return f"{time.strftime('%H:%M:%S', time.localtime(at_s))} {max(0.0, at_s - self.began_s):6.1f} s  "

    def event(self, event: Event) -> None:
        """A line of the story: when, and what happened."""
        self.moving("")
        head = self.head(event.at_s)
        # In a file or a pipe no line is wrapped, so that grep finds it.
        room = max(40, shutil.get_terminal_size().columns - len(head)) if self._terminal else 10**6
        first, *rest = textwrap.wrap(event.text, room) or [""]
        print(self.paint(head, DIM) + self.paint(first, COLOURS.get(event.kind, "")))
        for line in rest:
            print(" " * len(head) + self.paint(line, COLOURS.get(event.kind, "")))
        sys.stdout.flush()

    def now(self, kind: str, text: str) -> None:
        """A line of the story about what the quickstart itself does."""
        self.event(Event(time.time(), kind, text))

    def moving(self, text: str) -> None:
        """Redraw the status line; empty text removes it."""
        if not self._colours or not (text or self._moving):
            return
        room = shutil.get_terminal_size().columns - 1
        shown = self.paint((self.head(time.time()) + text)[:room], DIM) if text else ""
        print(f"\r\033[K{shown}", end="", flush=True)
        self._moving = bool(text)

    def table(self, title: str, rows: Sequence[Sequence[str]]) -> None:
        """A table; the first row is its head, and all columns except the first are numbers."""
        self.say(f"\n{title}", BOLD)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for number, (first, *others) in enumerate(rows):
            cells = [first.ljust(widths[0]), *(o.rjust(w) for o, w in zip(others, widths[1:], strict=True))]
            self.say("  " + "   ".join(cells), "" if number else DIM)
