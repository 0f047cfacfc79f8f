"""Counts how often each template was printed, and by whom, within a budget of memory.

What came first is kept for ever (half of the budget), and of the rest what came last or often: causes stand at the
beginning of a disaster, and its end shows what became of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from slurm_robust.diagnose.log.page import OTHERS, Place, Speaker

_TALLY_BYTES = 700
"""What a tally and its two places take, about; measured by the tests of the whole."""
_TEMPLATE_BYTES = 900


class LineTally:
    """One template's lines of one speaker. Its fields are changed in place: this is the innermost loop.

    Attributes:
        lines: The template that it belongs to.
        count: How many lines.
        first, last: The first and, at the end of a chunk, the last of them.
        index: Of the last one in the present chunk.
        moment: When it was last touched: it differs in each step and each chunk.
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
        line: The first one, decoded.
        last_line: The last one, where it counts steps.
        pinned: It is never forgotten.
        first_tick: The step in which it was first printed.
        step: The last step that it counted, -1 where it counts none.
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
        """How many lines, of all speakers."""
        if len(self.tallies) == 1:
            return next(iter(self.tallies.values())).count
        return sum(tally.count for tally in self.tallies.values())

    @property
    def ticks(self) -> int:
        """In how many steps some speaker printed it."""
        return max((tally.ticks for tally in self.tallies.values()), default=0)

    @property
    def size_bytes(self) -> int:
        """What it takes of the memory, about."""
        text = sys.getsizeof(self.line) + sys.getsizeof(self.template)
        return text + _TEMPLATE_BYTES + _TALLY_BYTES * len(self.tallies)


class TallyTable:
    """Templates and their tallies, within a budget.

    Attributes:
        dropped_lines: Lines of templates that were forgotten.
        sweeps: How often templates were forgotten: who holds tallies must let them go then.
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
        """The lines of a template so far."""
        return self._templates.get((template, name))

    def add(self, template: str, name: str, line: str, tick: int, *, rare: bool = False) -> TemplateLines:
        """A new template, with its first line. A rare one is kept for ever, up to a quarter of the budget."""
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
        """The tally of a speaker; without memory for one more, that of all others together."""
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
        """Forget the half of what is not pinned that was printed least often, of that the oldest."""
        loose = [item for item in self._templates.values() if not item.pinned and item is not newest]
        age = {id(item): number for number, item in enumerate(loose)}
        loose.sort(key=lambda item: (min(item.count, 4), age[id(item)]))
        for item in loose[: (len(loose) + 1) // 2]:
            del self._templates[item.template, item.name]
            self._size_bytes -= item.size_bytes
            self.dropped_lines += item.count
        self.sweeps += 1
