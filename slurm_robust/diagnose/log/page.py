"""Holds a job's compressed output as frozen values: `compress` returns them, `render` prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Speaker(NamedTuple):
    """The process that printed a line, as far as its label or its file tells.

    Attributes:
        rank: The global rank; None if it is not known.
        task: Slurm's task, from the label of `srun --label`. Without torchrun it is the rank.
        local: The rank within its node, from a label of torchrun.
        host: The node, from a label such as `node1: `, or from the caller.
    """

    rank: int | None = None
    task: int | None = None
    local: int | None = None
    host: str = ""

    @property
    def label(self) -> str:
        """A name for people: `rank 3`, `task 1 local 0`, `node7`; empty if it is not known."""
        if self.rank is not None:
            return f"rank {self.rank}"
        parts = [f"task {self.task}" if self.task is not None else self.host]
        parts += [f"local {self.local}"] if self.local is not None else []
        return " ".join(part for part in parts if part)


NOBODY = Speaker()
OTHERS = Speaker(host="others")
"""All speakers for whom there was no memory left, counted together."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a line.

    Attributes:
        source: The file's number in `Page.sources`.
        line: Counted from 1, by newlines: redrawn progress bars share the number of their line.
        offset_bytes: Offset of the line's first byte in the (decompressed) file.
        at_s: When it was printed, in seconds since the epoch (a time without a zone is taken as UTC), by its own time
            or the nearest time above it; None if no time was seen.
    """

    source: int
    line: int
    offset_bytes: int
    at_s: float | None = None

    @property
    def order(self) -> tuple[float, int, int]:
        """Sorts by time, then by place; lines without any time come last, file by file."""
        return (float("inf") if self.at_s is None else self.at_s, self.source, self.offset_bytes)


@dataclass(frozen=True, slots=True)
class SpeakerLines:
    """One template's lines of one speaker."""

    speaker: Speaker
    count: int
    first: Place
    last: Place


@dataclass(frozen=True, slots=True)
class PageEntry:
    """All lines of one template.

    Attributes:
        template: The line with numbers, addresses, paths and ids masked.
        line: The first line, decoded, without colours and rank labels, at most `lines.LINE_BYTES` long.
        last_line: The last line, if the template counts steps; else empty.
        name: The result of the caller's predicate, as text; `"word"` if it has one of the words; empty if the caller's
            choice did not accept it.
        speakers: Who printed it, the first speaker first.
        count: How many lines all speakers printed.
        routine: Healthy steps printed it again and again, so it is not news.
        steps: Whether it counts the training's steps.
        in_traceback: Whether its first line belongs to a traceback.
    """

    template: str
    line: str
    last_line: str
    name: str
    speakers: tuple[SpeakerLines, ...]
    count: int
    first: Place
    last: Place
    routine: bool = False
    steps: bool = False
    in_traceback: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are known to have printed it, in order."""
        return _ranks(self.speakers)


@dataclass(frozen=True, slots=True)
class PageTraceback:
    """One traceback, however many ranks printed it.

    Attributes:
        lines: All lines; if there are very many, a line in the middle says how many are left out.
        speakers: Who printed it, with any numbers and addresses.
        whole: Whether it ended as tracebacks do; False if its rank fell silent, or if lines of others tore it apart.
    """

    lines: tuple[str, ...]
    speakers: tuple[SpeakerLines, ...]
    count: int
    first: Place
    last: Place
    whole: bool = True

    @property
    def exception(self) -> str:
        """The last line that names an exception (`ValueError: …`); empty if there is none."""
        unindented = [line for line in self.lines if line and not line[0].isspace() and not line.endswith("last):")]
        return next((line for line in reversed(unindented) if not line.startswith("frame #")), "")

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are known to have printed it, in order."""
        return _ranks(self.speakers)


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """A file, and how much of it was read.

    Attributes:
        size_bytes: How many bytes were read (decompressed).
        lines: Logical lines: a redrawn progress bar is one each time.
        problem: Why the file was not read, or not to its end; empty if all was read.
    """

    path: str
    size_bytes: int = 0
    lines: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A summary of a job's output files.

    Attributes:
        entries: News, lines that were accepted as interesting, and routine step counters, in order of time.
        tracebacks: In order of time.
        steps: How often a step counter went on.
        routine_templates: How many templates were left out because healthy steps print them.
        routine_lines: How many lines these templates had.
        dropped_lines: Lines whose template was forgotten for lack of memory, though it was news.
        dropped_interesting: Dropped lines that were accepted as interesting.
        dropped_tracebacks: Tracebacks that were forgotten for lack of memory.
    """

    entries: tuple[PageEntry, ...] = ()
    tracebacks: tuple[PageTraceback, ...] = ()
    sources: tuple[SourceSummary, ...] = ()
    steps: int = 0
    routine_templates: int = 0
    routine_lines: int = 0
    dropped_lines: int = 0
    dropped_interesting: int = 0
    dropped_tracebacks: int = 0

    @property
    def lines(self) -> int:
        """Logical lines of all sources."""
        return sum(source.lines for source in self.sources)


def _ranks(speakers: tuple[SpeakerLines, ...]) -> tuple[int, ...]:
    return tuple(sorted({s.speaker.rank for s in speakers if s.speaker.rank is not None}))
