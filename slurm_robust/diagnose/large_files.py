"""Logs of any size: what rules could match is taken from a compressed page, in one pass and bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from slurm_robust.diagnose.findings import Matcher
from slurm_robust.diagnose.hints import hints
from slurm_robust.diagnose.log.compress import compress
from slurm_robust.diagnose.log.interest import Interest
from slurm_robust.diagnose.log.page import Page, Place
from slurm_robust.diagnose.rulebook import RuleBook

_OF_EXCEPTIONS = (b"error", b"exception", b"interrupt", b"failure", b"expired", b"iteration")


def interest_of(book: RuleBook, matcher: Matcher) -> Interest:
    """What must not be lost: each line that a rule matches, by that rule's name."""
    words = {word.encode() for rule in book.rules if rule.pattern for word in hints(rule.pattern)}

    def accepts(line: str) -> str:
        rule = matcher.match(line)
        return rule.id if rule is not None else ""

    return Interest((*sorted(words), *_OF_EXCEPTIONS), accepts)


def read_large(files: Iterable[Path], book: RuleBook, matcher: Matcher) -> tuple[Page, list[tuple[Place, str]]]:
    """The page of these files, and its lines that rules can read, in order of time, with their places."""
    page = compress(files, interest_of(book, matcher))
    return page, sorted(_lines(page), key=lambda found: _order(found[0]))


def _lines(page: Page) -> Iterator[tuple[Place, str]]:
    for entry in page.entries:
        if entry.name and not entry.in_traceback:
            yield entry.first, entry.line
    for traceback in page.tracebacks:
        for line in traceback.lines:
            yield traceback.first, line


def _order(place: Place) -> tuple[int, int]:
    """As they stand in the files: their times may be of several clocks."""
    return place.source, place.line
