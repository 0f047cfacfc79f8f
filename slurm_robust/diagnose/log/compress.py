"""Compresses a job's output files into a page: one pass, in bounded memory.

Most lines cost one look into a dictionary by their key (`lines`). Only the first line with a key is read closely, and
lines that count steps, may belong to a traceback or have to be asked for one by one. For any files, memory stays below
`MEMORY_BYTES` above the interpreter's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from slurm_robust.diagnose.log.interest import Interest, LineFilter
from slurm_robust.diagnose.log.line_shape import LineShape, decoded, glued_parts
from slurm_robust.diagnose.log.lines import CHUNK_BYTES, LINE_BYTES, Chunk, LogFile, LogReader, key_of, pieces
from slurm_robust.diagnose.log.page import NOBODY, Page, PageEntry, Place, SourceSummary, Speaker, SpeakerLines
from slurm_robust.diagnose.log.prefix import (
    Prefix,
    has_time,
    labels_of,
    read_prefix,
    read_speaker,
    read_time,
    read_year,
    strip_escapes,
)
from slurm_robust.diagnose.log.steps import is_routine, step_span
from slurm_robust.diagnose.log.tallies import LineTally, TallyTable, TemplateLines
from slurm_robust.diagnose.log.templates import template_of
from slurm_robust.diagnose.log.tracebacks import LineKind, TracebackStore, kind_of, may_open

MEMORY_BYTES = 200 << 20
_NEWS_BYTES, _INTERESTING_BYTES, _TRACEBACK_BYTES, _SHAPE_BYTES = 24 << 20, 40 << 20, 16 << 20, 32 << 20
_SHAPE_OVERHEAD_BYTES, _SLICE_BYTES = 1000, 200
_LOOK_BACK = 50
"""So many lines above a line without a time are searched for a time."""


def compress(
    files: Iterable[LogFile | Path], interesting: Interest | None = None, step_pattern: re.Pattern[str] | None = None
) -> Page:
    """Read output files, one after the other, and return a page with the news in them.

    Args:
        files: Rotated files in the order in which they were written.
        interesting: Lines that must not be lost; by default, lines with one of `USUAL_WORDS`.
        step_pattern: A pattern of the training's own progress lines, with a group `step`; by default usual lines are
            known.

    Files that cannot be read are named in `Page.sources`, and raise no error.
    """
    compressor = LogCompressor(interesting or Interest(), step_pattern)
    for file in files:
        compressor.read(file if isinstance(file, LogFile) else LogFile(Path(file)))
    return compressor.page()


class LogCompressor:
    """Reads files, one after the other; see `compress`."""

    def __init__(self, interesting: Interest, step_pattern: re.Pattern[str] | None = None) -> None:
        self._filter = LineFilter(interesting)
        self._step_pattern = step_pattern
        self._news = TallyTable(_NEWS_BYTES)
        self._interesting = TallyTable(_INTERESTING_BYTES)
        self._tracebacks = TracebackStore(_TRACEBACK_BYTES)
        self._sources: list[SourceSummary] = []
        self._stream = [0, 0]
        self._ticks: list[list[int]] = []
        """The first and the last step of each source; rotated files of one stream share them."""
        self._first_times: list[float | None] = []
        self._shapes: dict[bytes, LineShape] = {}
        self._shape_bytes = 0
        self._sweeps = 0
        self._tick = self._moment = self._chunks = 0
        self._time: float | None = None
        self._has_times = False
        self._touched: list[LineTally] = []
        self._chunk = Chunk(b"", 0, 1)
        self._file = LogFile(Path())
        self._labels = ""
        self._year = 1970

    def read(self, file: LogFile) -> None:
        """Read one file to its end."""
        self._file = file
        if not (file.continues and self._sources):
            self._begin_stream()
        self._forget_shapes()
        self._first_times.append(None)
        reader, lines = LogReader(file.path, file.data), 0
        for chunk in reader.chunks():
            if not lines and file.labelled is None and not self._labels:
                self._labels = labels_of(chunk.data[:CHUNK_BYTES].split(b"\n", 400)[:400])
            if not lines:
                self._year = read_year(chunk.data) or reader.year
            lines += len(chunk.lines)
            self._read_chunk(chunk)
        self._stream[1] = self._tick
        self._ticks.append(self._stream)
        self._sources.append(SourceSummary(str(file.path), reader.size_bytes, lines, reader.problem))

    def _begin_stream(self) -> None:
        """Drop what is known of the files before: this file does not continue them."""
        self._tracebacks.close_all()
        self._time, self._has_times = None, False
        self._labels = "task" if self._file.labelled else ""
        self._stream = [self._tick, self._tick]

    def _read_chunk(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._chunks += 1
        self._moment += 1
        self._tracebacks.close_idle()
        lines, find, watched = chunk.lines, self._shapes.get, self._tracebacks.open
        for index, key in enumerate(chunk.keys):
            shape = find(key) or self._learn(key, lines[index])
            if shape.careful or watched:
                self._read_carefully(shape, key, lines[index], index)
                continue
            tally = shape.tallies.get(lines[index][shape.start : shape.end])
            if tally is None:
                tally = self._tally(shape, shape.name, lines[index], index)
            tally.count += 1
            tally.index = index
            if tally.moment != self._moment:
                self._touch(tally)
        self._end_chunk()

    def _end_chunk(self) -> None:
        """Note the places of the lines that were the last of their tallies."""
        for tally in sorted((t for t in self._touched if t.count > 1), key=lambda t: t.index):
            tally.last = self._place(tally.index)
            if tally.lines.counts_steps:
                tally.lines.last_line = self._text_of(self._chunk.lines[tally.index])
        self._touched.clear()
        if self._chunk.lines:
            self._time = self._time_at(len(self._chunk.lines) - 1)

    def _touch(self, tally: LineTally) -> None:
        tally.moment = self._moment
        if tally.tick != self._tick:
            tally.tick = self._tick
            tally.ticks += 1
        if tally.chunk != self._chunks:
            tally.chunk = self._chunks
            self._touched.append(tally)

    def _learn(self, key: bytes, line: bytes) -> LineShape:
        """Look closely at the first line with this key."""
        if len(line) > LINE_BYTES:  # never remembered: it is read in pieces, and these are
            return LineShape(Prefix(0, 0, 0), parts=tuple(pieces(line)), careful=True)
        prefix = read_prefix(line, self._labels)
        parts = glued_parts(line, prefix)
        shape = LineShape(prefix, parts=parts, careful=True) if parts else self._learn_one(key, line, prefix)
        self._shape_bytes += len(key) + _SHAPE_OVERHEAD_BYTES
        if self._shape_bytes > _SHAPE_BYTES or self._sweeps != self._news.sweeps + self._interesting.sweeps:
            self._forget_shapes()
        self._shapes[key] = shape
        return shape

    def _learn_one(self, key: bytes, line: bytes, prefix: Prefix) -> LineShape:
        text = decoded(line, prefix)
        if not text.strip():
            return LineShape(prefix, kind=LineKind.BLANK, start=prefix.start, end=prefix.end)
        candidate = self._filter.of_key(key)
        if b"\x1b" in key and candidate is not True:  # colours may stand within a word
            bare = self._filter.of_key(strip_escapes(key))
            candidate = bare if candidate is False or bare else candidate
        shape = LineShape(prefix, template_of(text), candidate=candidate, start=prefix.start, end=prefix.end)
        shape.each_line = self._filter.each_line(candidate, key)
        if not shape.each_line:
            shape.name = self._filter.name(candidate, line, text)
        shape.step = step_span(line, self._step_pattern)
        shape.opens = may_open(line)
        shape.timed = b"00:00" in key and has_time(line)
        self._has_times = self._has_times or shape.timed
        shape.careful = shape.each_line or shape.opens or shape.step is not None
        return shape

    def _read_carefully(self, shape: LineShape, key: bytes, line: bytes, index: int) -> None:
        """Read a line the slow way: parts, steps, tracebacks, and lines that have to be asked for one by one."""
        if shape.parts:
            for start, end in shape.parts:
                part = line[start:end]
                self._read_part(key_of(part), part, index)
            return
        name, text = shape.name, ""
        if shape.each_line:
            text = decoded(line, shape.prefix)
            raw = line + b"\n" + strip_escapes(line) if b"\x1b" in line else line
            name = self._filter.name(shape.candidate, raw, text)
        if shape.step is not None:
            self._note_step(shape, name, line, index)
        inside = (shape.opens or bool(self._tracebacks.open)) and self._in_traceback(shape, line, index)
        if inside and not name:
            return
        tally = None if shape.each_line else shape.tallies.get(line[shape.start : shape.end])
        if tally is None:
            tally = self._tally(shape, name, line, index, inside=inside)
        tally.count += 1
        tally.index = index
        if tally.moment != self._moment:
            self._touch(tally)

    def _read_part(self, key: bytes, part: bytes, index: int) -> None:
        shape = self._shapes.get(key) or self._learn(key, part)
        self._read_carefully(shape, key, part, index)

    def _note_step(self, shape: LineShape, name: str, line: bytes, index: int) -> None:
        """Note a step: a step goes on if a template's number grows; a smaller number is a counter that restarts."""
        assert shape.step is not None
        lines = self._lines_of(shape, name, line)
        number = int(line[shape.step[0] : shape.step[1]] or 0)
        if number > lines.step >= 0:
            self._tick += 1
            self._moment += 1
        lines.step, lines.counts_steps = number, True

    def _in_traceback(self, shape: LineShape, line: bytes, index: int) -> bool:
        """Return whether this line was taken into a traceback."""
        text = decoded(line, shape.prefix)
        if shape.kind is None:
            shape.kind = kind_of(text) if shape.step is None or shape.opens else LineKind.OTHER
        speaker = self._speaker(shape, line)
        if self._tracebacks.feed(speaker, shape.kind, text, shape.template):
            return True
        if shape.kind is not LineKind.HEADER and shape.kind is not LineKind.OPENER:
            return False
        self._tracebacks.begin(speaker, shape.kind, text, shape.template, self._place(index))
        return True

    def _speaker(self, shape: LineShape, line: bytes) -> Speaker:
        digits = line[shape.start : shape.end]
        found = shape.speakers.get(digits)
        if found is None:
            found = read_speaker(line, shape.prefix, self._labels, self._file.speaker)
            shape.speakers[digits] = found
            self._shape_bytes += _SLICE_BYTES
        return found

    def _lines_of(self, shape: LineShape, name: str, line: bytes, *, inside: bool = False) -> TemplateLines:
        table = self._interesting if name else self._news
        found = table.find(shape.template, name)
        if found is None:
            rare = bool(name) and self._filter.is_rare(line, name)
            found = table.add(shape.template, name, decoded(line, shape.prefix), self._tick, rare=rare)
            found.in_traceback = inside
        return found

    def _tally(self, shape: LineShape, name: str, line: bytes, index: int, *, inside: bool = False) -> LineTally:
        """Return the tally of a line; if possible, it is remembered for lines with an equal key and label."""
        place = self._place(index)
        if shape.kind is LineKind.BLANK:
            blank = LineTally(_BLANK_LINES, NOBODY, place)
            shape.tallies[line[shape.start : shape.end]] = blank
            return blank
        lines = self._lines_of(shape, name, line, inside=inside)
        table = self._interesting if name else self._news
        tally = table.tally(lines, self._speaker(shape, line), place)
        if not shape.each_line:
            shape.tallies[line[shape.start : shape.end]] = tally
            self._shape_bytes += _SLICE_BYTES
        return tally

    def _place(self, index: int) -> Place:
        line, offset = self._chunk.place(index)
        return Place(len(self._sources), line, offset, self._time_at(index))

    def _time_at(self, index: int) -> float | None:
        """Return when a line was printed: by its own time, or the nearest time above it."""
        if not self._has_times:
            return None
        keys, lines = self._chunk.keys, self._chunk.lines
        for number in range(index, max(-1, index - _LOOK_BACK), -1):
            shape = self._shapes.get(keys[number])
            if shape is not None and shape.timed:
                found = read_time(lines[number], self._year)
                if found is not None and self._first_times[-1] is None:
                    self._first_times[-1] = found
                if found is not None:
                    return found
        return self._time

    def _text_of(self, line: bytes) -> str:
        line = line[:LINE_BYTES]
        return decoded(line, read_prefix(line, self._labels))

    def _forget_shapes(self) -> None:
        """Forget shapes, which hold tallies; lines that are still printed are learnt again."""
        self._shapes.clear()
        self._shape_bytes = 0
        self._sweeps = self._news.sweeps + self._interesting.sweeps

    def page(self) -> Page:
        """Return the page of the files that were read so far."""
        self._tracebacks.close_all()
        entries, routine, routine_lines = [], 0, 0
        for lines in (*self._interesting, *self._news):
            entry = self._entry(lines)
            if entry is None:
                continue
            if entry.routine and not entry.name and not entry.steps:
                routine, routine_lines = routine + 1, routine_lines + entry.count
            else:
                entries.append(entry)
        tracebacks = (
            replace(t, first=self._timed(t.first), last=self._timed(t.last), speakers=self._timed_all(t.speakers))
            for t in self._tracebacks
        )
        return Page(
            entries=tuple(sorted(entries, key=lambda e: self._order(e.first))),
            tracebacks=tuple(sorted(tracebacks, key=lambda t: self._order(t.first))),
            sources=tuple(self._sources),
            steps=self._tick,
            routine_templates=routine,
            routine_lines=routine_lines,
            dropped_lines=self._news.dropped_lines + self._interesting.dropped_lines,
            dropped_interesting=self._interesting.dropped_lines,
            dropped_tracebacks=self._tracebacks.dropped,
        )

    def _entry(self, lines: TemplateLines) -> PageEntry | None:
        tallies = [tally for tally in lines.tallies.values() if tally.count]
        if not tallies:
            return None
        speakers = self._timed_all(SpeakerLines(t.speaker, t.count, t.first, t.last) for t in tallies)
        first = min((s.first for s in speakers), key=lambda place: place.order)
        begin, end = self._ticks[tallies[0].first.source]
        return PageEntry(
            template=lines.template,
            line=lines.line,
            last_line=lines.last_line,
            name=lines.name,
            speakers=speakers,
            count=lines.count,
            first=first,
            last=max((s.last for s in speakers), key=lambda place: place.order),
            routine=is_routine(lines.ticks, lines.first_tick, begin, end),
            steps=lines.counts_steps,
            in_traceback=lines.in_traceback,
        )

    def _order(self, place: Place) -> tuple[float, int, int]:
        """Return a sort key: the lines of one file are in order, whatever its clocks say."""
        return place.order if len(self._sources) > 1 else (0.0, 0, place.offset_bytes)

    def _timed(self, place: Place) -> Place:
        """Return the place with a time: lines above the first time of a file get that time."""
        return place if place.at_s is not None else replace(place, at_s=self._first_times[place.source])

    def _timed_all(self, speakers: Iterable[SpeakerLines]) -> tuple[SpeakerLines, ...]:
        return tuple(replace(s, first=self._timed(s.first), last=self._timed(s.last)) for s in speakers)


_BLANK_LINES = TemplateLines("", "", "", pinned=True, first_tick=0)
