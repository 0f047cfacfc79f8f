"""What the quickstart prints: lines with their times, one line that moves, tables."""

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
    """What is printed: lines with their time, and on a terminal one last line that moves."""

    def __init__(self) -> None:
        self.began_s = time.time()
        self._terminal = sys.stdout.isatty()
        self._colours = self._terminal and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ
        self._moving = False

    def paint(self, text: str, colour: str) -> str:
        """The text in a colour, where colours are."""
        return f"\033[{colour}m{text}\033[0m" if self._colours and colour else text

    def say(self, text: str = "", colour: str = "") -> None:
        """A line without a time."""
        self.moving("")
        print(self.paint(text, colour), flush=True)

    def event(self, event: Event) -> None:
        """A line of the story: clock, seconds since the start, what happened."""
        self.moving("")
        clock = time.strftime("%H:%M:%S", time.localtime(event.at_s))
        head = f"{clock} {max(0.0, event.at_s - self.began_s):6.1f} s  "
        # Into a file or a pipe nothing is cut: grep must find it.
        room = max(40, shutil.get_terminal_size().columns - len(head)) if self._terminal else 10**6
        first, *rest = textwrap.wrap(event.text, room) or [""]
        print(self.paint(head, DIM) + self.paint(first, COLOURS.get(event.kind, "")))
        for line in rest:
            print(" " * len(head) + self.paint(line, COLOURS.get(event.kind, "")))
        sys.stdout.flush()

    def now(self, kind: str, text: str) -> None:
        """A line of the story that is our own doing."""
        self.event(Event(time.time(), kind, text))

    def moving(self, text: str) -> None:
        """The line that moves; empty takes it away."""
        if self._colours and (text or self._moving):
            room = shutil.get_terminal_size().columns - 1
            print("\r\033[K" + self.paint(text[:room], DIM), end="", flush=True)
            self._moving = bool(text)

    def table(self, title: str, rows: Sequence[Sequence[str]]) -> None:
        """A table; the first row is its head, all columns but the first are numbers."""
        self.say(f"\n{title}", BOLD)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for number, (first, *others) in enumerate(rows):
            cells = [first.ljust(widths[0]), *(o.rjust(w) for o, w in zip(others, widths[1:], strict=True))]
            self.say("  " + "   ".join(cells), "" if number else DIM)
