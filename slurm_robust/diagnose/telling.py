"""Chooses the lines of a log that tell most, if there is room for few; the log compressor chooses them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_robust.diagnose.findings import Matcher
from slurm_robust.diagnose.hints import hints
from slurm_robust.diagnose.log.compress import compress
from slurm_robust.diagnose.log.interest import Interest
from slurm_robust.diagnose.log.lines import LogFile
from slurm_robust.diagnose.log.render import telling_places
from slurm_robust.diagnose.rulebook import RuleBook

MOST = 24
_OF_EXCEPTIONS = (b"error", b"exception", b"interrupt", b"failure", b"expired", b"iteration")


def telling_lines(lines: Sequence[str], book: RuleBook, matcher: Matcher, most: int = MOST) -> list[int]:
    """Return the places of the lines of one file that tell most, best first: known to rules, tracebacks, news.

    If lines only differ in numbers, the first one counts; lines that healthy steps print do not count.
    """
    text = "\n".join(line.replace("\r", " ").replace("\n", " ") for line in lines)
    page = compress([LogFile(Path("lines"), data=text.encode("utf-8", "replace"))], interest_of(book, matcher))
    return [place.line - 1 for place in telling_places(page, most)]


def interest_of(book: RuleBook, matcher: Matcher) -> Interest:
    """Return the lines that must not be lost: each line that a rule matches, by that rule's name."""
    words = {word.encode() for rule in book.rules if rule.pattern for word in hints(rule.pattern)}

    def accepts(line: str) -> str:
        rule = matcher.match(line)
        return rule.id if rule is not None else ""

    return Interest((*sorted(words), *_OF_EXCEPTIONS), accepts)
