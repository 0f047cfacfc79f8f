"""Writes a page as text within a limit: the entries that tell most are kept, and shown in order of time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from time import gmtime, strftime

from slurm_robust.core.text import printable, shortened
from slurm_robust.diagnose.log.page import Page, PageEntry, PageTraceback, Place, SpeakerLines

DEFAULT_BYTES = 16 << 10
_ERROR = re.compile(r"(?i)error|exception|fatal|fail|abort|killed|panic|critical|traceback|signal|cancelled|corrupt")
_WARNING = re.compile(r"(?i)warn|timeout|timed out|retry|refused|reset|denied|mismatch|\bnan\b|\binf\b|unreachable")
_LINE_CHARS = 600
_TRACEBACK_LINES = 60
_RANKS = 8
_FOOTER_BYTES = 120
_LEAST_BYTES = 40
"""No entry fits into less."""


@dataclass(frozen=True)
class _Block:
    """A piece of the page that is shown whole or not at all."""

    score: float
    place: Place
    text: str


def render(page: Page, max_bytes: int = DEFAULT_BYTES) -> str:
    """Return the page as text of at most `max_bytes` of UTF-8. Secrets stay: it is for people who may read the log."""
    head = _head(page)
    blocks = sorted(_blocks(page), key=lambda block: (-block.score, block.place.order))
    left = max_bytes - len(head.encode()) - _FOOTER_BYTES
    kept: list[_Block] = []
    for block in blocks:
        if left < _LEAST_BYTES:
            break
        text = block.text
        size = len(text.encode()) + 1
        if size > left and kept:
            continue
        if size > left:  # the most telling of all is rather cut than left out
            text = _cut(text, left)
            size = len(text.encode()) + 1
        if text and size <= left:
            kept.append(_Block(block.score, block.place, text))
            left -= size
    one_file = len(page.sources) < 2  # it is in order, whatever its clocks say
    kept.sort(key=lambda block: (0.0, 0, block.place.offset_bytes) if one_file else block.place.order)
    body = [block.text for block in kept]
    foot = f"({len(blocks) - len(kept)} of {len(blocks)} entries are left out)" if len(kept) < len(blocks) else ""
    # The page is for a terminal, a mail or a chat: text of a log must not take effect there.
    return _cut(printable("\n".join(part for part in (head, *body, foot) if part), keep="\n\t"), max_bytes)


def telling_places(page: Page, most: int) -> list[Place]:
    """Return the places of the entries that tell most, the best first; for a traceback, of its exception."""
    exceptions = {trace.exception: _traceback_score(trace) for trace in page.tracebacks}
    known = {entry.line for entry in page.entries}
    last_step = max((e.last.order for e in page.entries if e.steps and e.routine), default=None)
    scored = [(t.first, _traceback_score(t)) for t in page.tracebacks if t.exception not in known]
    for entry in page.entries:
        if entry.in_traceback:
            scored += [(entry.first, exceptions[entry.line])] if entry.line in exceptions else []
        elif not entry.routine:
            scored.append((entry.first, _entry_score(entry, last_step)))
    scored.sort(key=lambda told: (-told[1], told[0].order))
    return [place for place, _ in scored[:most]]


def _head(page: Page) -> str:
    lines = []
    for source in page.sources:
        problem = f"; {source.problem}" if source.problem else ""
        lines.append(f"# {shortened(source.path, 200)}: {source.lines} lines, {source.size_bytes} bytes{problem}")
    if len(lines) > 6:
        lines[5:] = [f"# and {len(page.sources) - 5} more files"]
    if page.routine_templates:
        lines.append(
            f"# left out: {page.routine_lines} lines of {page.routine_templates} kinds that healthy steps print"
        )
    if page.dropped_lines or page.dropped_tracebacks:
        lines.append(
            f"# forgotten for lack of memory: {page.dropped_lines} lines, {page.dropped_tracebacks} tracebacks"
        )
    return "\n".join(lines)


def _blocks(page: Page) -> Iterable[_Block]:
    in_tracebacks = {line for trace in page.tracebacks for line in trace.lines}
    last_step = max((e.last.order for e in page.entries if e.steps and e.routine), default=None)
    for trace in page.tracebacks:
        yield _Block(_traceback_score(trace), trace.first, _traceback_text(trace))
    for entry in page.entries:
        if entry.in_traceback and entry.line in in_tracebacks:
            continue  # it is shown there
        yield _Block(_entry_score(entry, last_step), entry.first, _entry_text(entry))


def _traceback_score(trace: PageTraceback) -> float:
    """Return a score: rare tracebacks tell more than those that all ranks print, except the very first."""
    return 100.0 + (5.0 if trace.whole else 0.0) + 10.0 / min(trace.count, 100)


def _entry_score(entry: PageEntry, last_step: tuple[float, int, int] | None) -> float:
    score = 60.0 if entry.name else 20.0
    score += 30.0 if _ERROR.search(entry.line) else 15.0 if _WARNING.search(entry.line) else 0.0
    score += 10.0 if last_step is not None and entry.last.order > last_step else 0.0
    score += 5.0 / min(entry.count, 100)
    if entry.steps and entry.routine:
        return 75.0 + min(entry.count, 1000) / 1000
    return score - 50.0 if entry.routine else score


def _entry_text(entry: PageEntry) -> str:
    times = f" ×{entry.count}" if entry.count > 1 else ""
    until = f", last {_when(entry.last)}" if entry.count > 1 else ""
    routine = ", routine" if entry.routine else ""
    text = f"{_when(entry.first)}{_who(entry.speakers)}{times}{until}{routine}: {shortened(entry.line, _LINE_CHARS)}"
    if entry.last_line and entry.last_line != entry.line:
        text += f"\n    last: {shortened(entry.last_line, _LINE_CHARS)}"
    return text


def _traceback_text(trace: PageTraceback) -> str:
    times = f" ×{trace.count}, last {_when(trace.last)}" if trace.count > 1 else ""
    lines = [shortened(line, _LINE_CHARS) for line in trace.lines]
    if len(lines) > _TRACEBACK_LINES:
        half = _TRACEBACK_LINES // 2
        lines[half:-half] = [f"... {len(lines) - 2 * half} lines are left out ..."]
    torn = "" if trace.whole else " (not whole)"
    return "\n".join((f"{_when(trace.first)}{_who(trace.speakers)}{times}{torn}:", *(f"    {line}" for line in lines)))


def _when(place: Place) -> str:
    """Return the time, if it is known, and the line's number."""
    at = "" if place.at_s is None else strftime("%m-%d %H:%M:%S ", gmtime(place.at_s))
    return f"{at}line {place.line}" if place.source == 0 else f"{at}file {place.source + 1} line {place.line}"


def _who(speakers: tuple[SpeakerLines, ...]) -> str:
    """Return `, rank 3`; for many speakers the first ones, and how many more there are."""
    names = [s.speaker.label for s in speakers if s.speaker.label]
    more = f" and {len(names) - _RANKS} more" if len(names) > _RANKS else ""
    return f", {', '.join(names[:_RANKS])}{more}" if names else ""


def _cut(text: str, max_bytes: int) -> str:
    """Return at most so many bytes of UTF-8 of the text, with an ellipsis if it is cut."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    mark = "…" if max_bytes >= 3 else ""
    return data[: max(0, max_bytes - len(mark.encode()))].decode("utf-8", "ignore") + mark
