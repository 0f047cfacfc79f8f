"""Counts how often each template was printed, and by whom, within a budget of memory.

The first templates are kept for ever (half of the budget), and of the rest those that came last or often: the cause of
a disaster is at its beginning, and its end shows the outcome.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from slurm_robust.diagnose.log.page import OTHERS, Place, Speaker

_TALLY_BYTES = 700
"""The approximate size of a tally and its two places; measured by the tests of the whole."""
_TEMPLATE_BYTES = 900


class LineTally:
    """One template's lines of one speaker. Its fields are changed in place: this is the innermost loop.

    Attributes:
        lines: The template to which the tally belongs.
        count: How many lines there were.
        first, last: The place of the first line and, at the end of a chunk, of the last line.
        index: Index of the last line in the present chunk.
        moment: When the tally was last touched: it differs in each step and each chunk.
        chunk: Number of the chunk in which it was last touched.
        tick: The last step in which it was printed.
        ticks: In how many steps it was printed.
    """

    __slots__ = ("chunk", "count", "first", "index", "last", "lines", "moment", "speaker", "tick", "ticks")

    def __init__(self, lines: TemplateLines, speaker: Speaker, first: Place) -> None:
        self.lines = lines
        self.speaker = speaker
        self.first = self.last = first
        self.count = self.index = self.ticks = 0
        self.moment = self.chunk = self.tick = -1


@dataclass(eq=False, slots=True)
class TemplateLines:
    """All lines of one template and one name.

    Attributes:
        line: The first line, decoded.
        last_line: The last line, if the template counts steps.
        pinned: Whether it is kept for ever.
        first_tick: The step in which it was first printed.
        step: The last step that it counted, -1 if it does not count steps.
    """

    template: str
    name: str
    line: str
    pinned: bool
    first_tick: int
    counts_steps: bool = False
    in_traceback: bool = False
    last_line: str = ""
    step: int = -1
    tallies: dict[Speaker, LineTally] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of lines of all speakers."""
        if len(self.tallies) == 1:
            return next(iter(self.tallies.values())).count
        return sum(tally.count for tally in self.tallies.values())

    @property
    def ticks(self) -> int:
        """The largest number of steps in which one speaker printed it."""
        return max((tally.ticks for tally in self.tallies.values()), default=0)

    @property
    def size_bytes(self) -> int:
        """Its approximate size in memory."""
        text = sys.getsizeof(self.line) + sys.getsizeof(self.template)
        return text + _TEMPLATE_BYTES + _TALLY_BYTES * len(self.tallies)


class TallyTable:
    """Templates and their tallies, within a budget.

    Attributes:
        dropped_lines: Lines of templates that were forgotten.
        sweeps: How often templates were forgotten: holders of tallies must then drop them.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._size_bytes = 0
        self._rare_bytes = 0
        self._templates: dict[tuple[str, str], TemplateLines] = {}
        self.dropped_lines = 0
        self.sweeps = 0

    def __iter__(self) -> Iterator[TemplateLines]:
        return iter(self._templates.values())

    def find(self, template: str, name: str) -> TemplateLines | None:
        """Return the lines of a template so far; None if it is not known."""
        return self._templates.get((template, name))

    def add(self, template: str, name: str, line: str, tick: int, *, rare: bool = False) -> TemplateLines:
        """Add a new template, with its first line. A rare one is kept for ever, up to a quarter of the budget."""
        lines = TemplateLines(template, name, line, self._size_bytes < self._budget_bytes // 2, tick)
        if rare and not lines.pinned and self._rare_bytes < self._budget_bytes // 4:
            self._rare_bytes += lines.size_bytes
            lines.pinned = True
        self._templates[template, name] = lines
        self._size_bytes += lines.size_bytes
        if self._size_bytes > self._budget_bytes:
            self._sweep(lines)
        return lines

    def tally(self, lines: TemplateLines, speaker: Speaker, first: Place) -> LineTally:
        """Return the tally of a speaker; if there is no memory for one more, that of all others together."""
        found = lines.tallies.get(speaker)
        if found is not None:
            return found
        if lines.tallies and self._size_bytes > self._budget_bytes * 5 // 8:
            speaker = OTHERS
            if speaker in lines.tallies:
                return lines.tallies[speaker]
        self._size_bytes += _TALLY_BYTES
        lines.tallies[speaker] = LineTally(lines, speaker, first)
        return lines.tallies[speaker]

    def _sweep(self, newest: TemplateLines) -> None:
        """Forget half of the templates that are not pinned: those printed least often, and of these the oldest."""
        loose = [item for item in self._templates.values() if not item.pinned and item is not newest]
        age = {id(item): number for number, item in enumerate(loose)}
        loose.sort(key=lambda item: (min(item.count, 4), age[id(item)]))
        for item in loose[: (len(loose) + 1) // 2]:
            del self._templates[item.template, item.name]
            self._size_bytes -= item.size_bytes
            self.dropped_lines += item.count
        self.sweeps += 1
